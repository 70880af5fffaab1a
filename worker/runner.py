"""The one seam between queue and engine: one thread claims, renews, completes in groups and rings."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from db.queue import Claimed
from db.tables import WorkerState
from worker.claims import Bell, Claim, Retries, Running, SampleId
from worker.engine.errors import PromptError
from worker.engine.text import render
from worker.engine.types import Failure, Generation, Request
from worker.engine_thread import EngineThread, SteppingEngine
from worker.ledger import Ledger
from worker.sampling import effective_seed, resolve, to_engine
from worker.serving import Serving

log = logging.getLogger("specmill.worker")

GROUP = 32  # prompts completed in one transaction, at most
LONGEST_BEAT = 5.0  # seconds between heartbeats, at most


@dataclass(frozen=True)
class _Drain:
    grace: float


class Runner:
    """Tasks call `hear`, the process `drain`; `on_death` is told of an error that ends the runner."""

    def __init__(
        self,
        db: Engine,
        serving: Serving,
        engine: SteppingEngine,
        ring: Callable[[int], object],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._serving = serving
        self._ledger = Ledger(db, serving)
        self._engine = EngineThread(engine, on_ended=self._put, on_death=self._put)
        self._ring = ring
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[Bell | _Drain | BaseException | Sequence[Generation | Failure]]
        self._inbox = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="runner", daemon=True)
        self._refill = max(1, serving.max_rows // 4)  # smaller claims than this are not worth a transaction
        self._bells: deque[Bell] = deque()  # heard, waiting for room
        self._claims: list[Claim] = []
        self._running: dict[int, Running] = {}
        self._ended: list[Running] = []  # to be written as succeeded or failed
        self._returned: list[Running] = []  # to be written as pending again
        self._retries = Retries()
        self._closed = False
        self._deadline: float | None = None  # set: draining
        self._error: BaseException | None = None
        self._next_beat = 0.0
        self._last_beat = time.monotonic()
        self._tokens = 0  # generated since the last beat

    def start(self) -> None:
        self._engine.start()
        self._thread.start()

    def hear(self) -> Bell:
        """A bell rang: claim for it. The caller waits on what is returned."""
        bell = Bell()
        self._put(bell)
        if self._closed:  # nobody reads the inbox any more
            bell.end()
        return bell

    def drain(self, grace: float) -> None:
        """Claim no more; finish what is held within `grace` seconds, release the rest, end."""
        self._put(_Drain(grace))

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, event: Bell | _Drain | BaseException | Sequence[Generation | Failure]) -> None:
        self._inbox.put(event)

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._serve_bells()
                self._receive()
                self._complete()
                self._beat_if_due()
            self._leave()
        except BaseException as error:  # never alive and idle: the process must hear of it
            log.exception("the runner died")
            self._error = error
        finally:
            self._close_down()
            if self._error is not None:
                self._on_death(self._error)

    def _is_done(self) -> bool:
        if self._error is not None:
            return True
        if self._deadline is None:
            return False
        return not self._held() or time.monotonic() >= self._deadline

    def _held(self) -> list[Running]:
        return [*self._running.values(), *self._ended, *self._returned]

    # Events

    def _receive(self) -> None:
        """Wait for one event or until something is due; then take all that came meanwhile."""
        due = self._next_beat
        if self._ended or self._returned:
            due = min(due, time.monotonic() + self._ledger.away_seconds)
        if self._deadline is not None:
            due = min(due, self._deadline)
        try:
            self._take(self._inbox.get(timeout=max(0.0, due - time.monotonic())))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            pass

    def _take(self, event: Bell | _Drain | BaseException | Sequence[Generation | Failure]) -> None:
        match event:
            case Bell():
                self._bells.append(event)
            case _Drain(grace):
                deadline = time.monotonic() + grace
                self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
                self._next_beat = 0.0  # say so at once
            case BaseException():
                self._error = event
            case _:
                for output in event:
                    self._note(output)

    def _note(self, output: Generation | Failure) -> None:
        assert isinstance(output.request_id, SampleId)
        running = self._running.get(output.request_id.prompt_id)
        if running is None or running.claimed.attempt != output.request_id.attempt:
            return  # its lease was lost, or another of its samples has failed
        if isinstance(output, Generation):
            running.generations[output.sample_index] = output
            self._tokens += output.completion_tokens
        else:
            running.failure = output
            self._evict(running)
        if running.has_ended:
            self._end(running)

    def _end(self, running: Running) -> None:
        self._running.pop(running.claimed.prompt_id, None)
        failure = running.failure
        if failure is not None and self._retries.again(running.claimed.prompt_id, failure):
            log.warning("prompt %s is returned: %s", running.claimed.custom_id, failure.message)
            self._returned.append(running)
        else:
            self._ended.append(running)

    def _evict(self, running: Running) -> None:
        for request_id in running.unfinished():
            self._engine.cancel(request_id)

    # Claims

    def _serve_bells(self) -> None:
        if self._deadline is not None:
            self._dismiss_bells()
            return
        while (room := self._room()) >= self._refill and not self._ledger.away_seconds:
            if not self._bells:
                self._free_a_slot()
                return
            claimed = self._ledger.claim(room)
            if claimed is None:
                return
            claim = Claim(self._bells.popleft())
            self._claims.append(claim)
            arrived = time.monotonic()
            for prompt in claimed:
                self._start(prompt, claim, arrived)
            if not claimed:  # nothing to do: this bell goes out of circulation
                self._claims.remove(claim)
                claim.bell.end()

    def _room(self) -> int:
        """Free rows and one refill."""
        rows = sum(running.claimed.n - len(running.generations) for running in self._running.values())
        return 2 * self._serving.max_rows - rows

    def _start(self, claimed: Claimed, claim: Claim, arrived: float) -> None:
        claim.prompts.add(claimed.prompt_id)
        running = Running(claimed, claim, [], "", claimed.waited_seconds)
        self._running[claimed.prompt_id] = running
        try:
            prompt = claimed.text if claimed.text is not None else claimed.messages or []
            rendered = render(self._serving.tokenizer, prompt, claimed.chat_template_kwargs)
            resolved = resolve(self._serving.defaults, claimed.batch_sampling, claimed.sampling)
            seed = effective_seed(resolved, claimed.batch_seed, claimed.position)
            sampling = to_engine(resolved, seed)
        except PromptError as error:
            running.failure = Failure((), 0, error.code, error.message, retryable=False)
            self._end(running)
            return
        running.rendered = rendered.text
        running.waited_seconds += time.monotonic() - arrived
        for index in range(claimed.n):
            request_id = SampleId(claimed.prompt_id, claimed.attempt, index)
            request = Request(request_id, rendered.token_ids, sampling, sample_index=index)
            running.requests.append(request)
            self._engine.submit(request)

    def _free_a_slot(self) -> None:
        """A few long prompts must not hold every slot: no bell would be heard, and rows stay empty."""
        if len(self._claims) >= self._serving.slots and self._running:
            smallest = min(self._claims, key=lambda claim: len(claim.prompts))
            self._close([smallest])

    def _close(self, claims: list[Claim]) -> None:
        """Let the tasks of these claims return, and put as many bells back into circulation."""
        if claims and (pending := self._ledger.pending()):
            self._ring(min(len(claims), pending))
        for claim in claims:
            self._claims.remove(claim)
            claim.bell.end()

    def _dismiss_bells(self) -> None:
        for bell in self._bells:
            bell.end()
        self._bells.clear()

    def _close_down(self) -> None:
        """Let every task return, those that come too late included."""
        self._closed = True
        while not self._inbox.empty():
            event = self._inbox.get_nowait()
            if isinstance(event, Bell):
                event.end()
        self._dismiss_bells()
        for claim in self._claims:
            claim.bell.end()
        self._engine.stop()

    # The database

    def _complete(self) -> None:
        """Write what has ended; while the database is away it is kept, and tried again."""
        while self._ended or self._returned:
            group, returned = self._ended[:GROUP], self._returned[:GROUP]
            accepted = self._ledger.complete(
                [running.success() for running in group if running.failure is None],
                [running.failed() for running in group if running.failure is not None],
                [running.lease for running in returned],
            )
            if accepted is None:
                return
            del self._ended[: len(group)], self._returned[: len(returned)]
            for running in group:
                if running.claimed.prompt_id not in accepted:
                    log.info(
                        "prompt %s: its lease was lost, the output is dropped", running.claimed.custom_id
                    )
            self._settle([*group, *returned])

    def _settle(self, prompts: Sequence[Running]) -> None:
        for running in prompts:
            running.claim.prompts.discard(running.claimed.prompt_id)
        self._close([claim for claim in self._claims if not claim.prompts])

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + min(LONGEST_BEAT, self._serving.lease_seconds / 6)
        held = self._held()
        activity = {
            "rows_in_flight": self._engine.rows_in_flight,
            "tokens_per_second": round(self._tokens / max(1e-3, now - self._last_beat), 1),
            "claimed": len(held),
        }
        state = WorkerState.READY if self._deadline is None else WorkerState.DRAINING
        kept = self._ledger.beat([running.lease for running in held], state, activity)
        if kept is None:
            return
        self._last_beat, self._tokens = now, 0
        self._drop([running for running in held if running.lease not in kept])

    def _drop(self, lost: Sequence[Running]) -> None:
        """Reaped, cancelled, expired or paused: what these prompts get here must not be written."""
        for running in lost:
            log.info("prompt %s: its lease is over, its rows are evicted", running.claimed.custom_id)
            self._evict(running)
            self._running.pop(running.claimed.prompt_id, None)
        self._ended = [running for running in self._ended if running not in lost]
        self._returned = [running for running in self._returned if running not in lost]
        self._settle(lost)

    def _leave(self) -> None:
        """Write what is finished. What is not goes back, unless the engine died: that counts as a crash."""
        self._ledger.try_now()
        self._complete()
        unfinished = list(self._running.values())
        for running in unfinished:
            self._evict(running)
        if unfinished and self._error is None:
            self._ledger.release([running.lease for running in unfinished])
            log.info("%d unfinished prompts were released", len(unfinished))
        if pending := self._ledger.pending():  # others must hear the bells that this worker will not
            self._ring(min(pending, self._serving.slots))
        if self._ended or self._ledger.stop_worker() is None:
            log.error(
                "the database is away: %d finished prompts could not be stored and run again elsewhere",
                len(self._ended),
            )
