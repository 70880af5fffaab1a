"""The one seam between queue and engine: one thread claims, renews, completes in groups and rings."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from db.queue import Claimed
from db.tables import WorkerState
from worker.claims import Bell, Claim, Compared, Drain, Event, Retries, Running, SampleId
from worker.comparisons import Comparisons
from worker.engine.errors import PromptError
from worker.engine.types import Failure, Generation
from worker.engine_thread import EngineThread, SteppingEngine
from worker.ledger import Ledger
from worker.outcomes import Outcomes
from worker.preparing import prepare
from worker.serving import Serving
from worker.slots import Slots
from worker.spool import Spool
from worker.vitals import Vitals

log = logging.getLogger("specmill.worker")

LONGEST_BEAT = 5.0  # seconds between heartbeats, at most


class Runner:
    """Tasks call `hear`, the process `drain`.

    `on_success` is told of each prompt that succeeds here, `on_death` of an error that ends the runner.
    """

    def __init__(
        self,
        db: Engine,
        serving: Serving,
        engine: SteppingEngine,
        spool: Spool,
        ring: Callable[[int], object],
        on_success: Callable[[], object],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._serving = serving
        self._ledger = Ledger(db, serving)
        self._outcomes = Outcomes(self._ledger, spool)
        self._comparisons = Comparisons(self._ledger)
        self._slots = Slots(serving.slots, ring, self._ledger.pending)
        self._engine = EngineThread(engine, on_ended=self._put, on_compared=self._put, on_death=self._put)
        self._ring = ring
        self._on_success = on_success
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="runner", daemon=True)
        self._refill = max(1, serving.max_rows // 4)  # smaller claims than this are not worth a transaction
        self._running: dict[int, Running] = {}  # the last claimed is the last
        self._retries = Retries()
        self._must_drain = False  # a prompt waits that must run alone: claim nothing until it can
        self._closed = False
        self._deadline: float | None = None  # set: draining
        self._error: BaseException | None = None
        self._next_beat = 0.0
        self._last_beat = time.monotonic()
        self._tokens = 0  # generated since the last beat
        self._turns = self._num_claims = 0
        self._is_hungry = False

    def start(self) -> None:
        self._engine.start()
        self._thread.start()

    def vitals(self) -> Vitals:
        """From any thread."""
        return Vitals(
            runner_alive=self._thread.is_alive(),
            turns=self._turns,
            engine_alive=self._engine.is_alive,
            steps=self._engine.steps,
            is_stepping=self._engine.is_stepping,
            claims=self._num_claims,
            is_hungry=self._is_hungry,
        )

    def hear(self) -> Bell:
        """A bell rang: claim for it. The caller waits on what is returned."""
        bell = Bell()
        self._put(bell)
        if self._closed:  # nobody reads the inbox any more
            bell.end()
        return bell

    def drain(self, grace: float) -> None:
        """Claim no more; finish what is held within `grace` seconds, release the rest, end."""
        self._put(Drain(grace))

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, event: Event) -> None:
        self._inbox.put(event)

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._turns += 1
                self._comparisons.write()  # before the end of the batch that they are about
                self._slots.settle(self._outcomes.write())
                self._serve_bells()
                self._receive()
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
        return [*self._running.values(), *self._outcomes.held]

    # Events

    def _receive(self) -> None:
        """Wait for one event or until something is due; then take all that came meanwhile."""
        due = self._next_beat
        if not self._outcomes.all_written:
            due = min(due, time.monotonic() + self._ledger.away_seconds)
        if self._deadline is not None:
            due = min(due, self._deadline)
        try:
            self._take(self._inbox.get(timeout=max(0.0, due - time.monotonic())))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            pass

    def _take(self, event: Event) -> None:
        match event:
            case Bell():
                self._slots.hear(event)
            case Drain(grace):
                deadline = time.monotonic() + grace
                self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
                self._next_beat = 0.0  # say so at once
                self._return_waiting()
            case Compared(comparisons):
                self._comparisons.note(comparisons)
            case BaseException():
                self._error = event
            case _:
                for output in event:
                    self._note(output)
                self._shed()

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
        if failure is None:
            self._on_success()
        elif self._retries.again(running.claimed.prompt_id, failure):
            log.warning("prompt %s is returned: %s", running.claimed.custom_id, failure.message)
            self._outcomes.give_back(running)
            return
        self._outcomes.end(running)

    def _evict(self, running: Running) -> None:
        for request_id in running.unfinished():
            self._engine.cancel(request_id)

    def _shed(self) -> None:
        """The engine had no memory for all its rows: what it cannot take soon goes back, at no cost."""
        has_shrunk = self._engine.max_rows < self._serving.max_rows
        while has_shrunk and self._room() < 0 and len(self._running) > 1:
            last = self._return_last()
            log.warning("prompt %s is returned: memory for it ran out", last.claimed.custom_id)

    def _return_waiting(self) -> None:
        """Draining: what has no row yet another worker can begin now, and the end here comes sooner."""
        while self._room() < self._num_rows() and len(self._running) > 1:
            self._return_last()

    def _return_last(self) -> Running:
        _, last = self._running.popitem()
        self._evict(last)
        self._outcomes.give_back(last)
        return last

    # Claims

    def _serve_bells(self) -> None:
        self._is_hungry = False
        if self._deadline is not None:
            self._slots.dismiss()
            return
        while self._may_claim() and self._room() >= self._refill:
            if not self._slots.has_waiting:
                if self._running:
                    self._slots.free_one()
                self._is_hungry = True
                return
            claims = self._ledger.claim(self._room(), is_idle=not self._running)
            self._num_claims += 1
            if claims is None:
                return
            self._must_drain = claims.must_drain
            if self._must_drain:
                return
            claim = self._slots.begin()
            arrived = time.monotonic()
            for prompt in claims.prompts:
                self._start(prompt, claim, arrived)
            if not claims.prompts:  # nor is there anything for the bells that were heard before this claim
                self._slots.end_empty(claim)
                self._slots.dismiss()

    def _may_claim(self) -> bool:
        if self._ledger.away_seconds or not self._outcomes.all_written:
            return False
        leases_first = time.monotonic() >= self._next_beat  # however many bells ring
        must_drain = self._must_drain and bool(self._running)
        runs_alone = any(running.claimed.is_suspect for running in self._running.values())
        return not (leases_first or must_drain or runs_alone)

    def _room(self) -> int:
        """Free rows and one refill."""
        rows = sum(running.claimed.n - len(running.generations) for running in self._running.values())
        return 2 * self._num_rows() - rows

    def _num_rows(self) -> int:
        return min(self._serving.max_rows, self._engine.max_rows)

    def _start(self, claimed: Claimed, claim: Claim, arrived: float) -> None:
        claim.prompts.add(claimed.prompt_id)
        running = Running(claimed, claim, [], "", claimed.waited_seconds)
        self._running[claimed.prompt_id] = running
        try:
            prepared = prepare(claimed, self._serving)
        except PromptError as error:
            running.failure = Failure((), 0, error.code, error.message, retryable=False)
            self._end(running)
            return
        running.rendered, running.requests = prepared.rendered, prepared.requests
        running.waited_seconds += time.monotonic() - arrived
        for request in prepared.requests:
            self._engine.submit(request)

    def _close_down(self) -> None:
        """Let every task return, those that come too late included."""
        self._closed = True
        while not self._inbox.empty():
            event = self._inbox.get_nowait()
            if isinstance(event, Bell):
                event.end()
        self._slots.close()
        self._engine.stop()

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
        self._outcomes.drop({running.lease for running in lost})
        self._slots.settle(lost)

    def _leave(self) -> None:
        """Write what is finished. What is not goes back, unless the engine died: that counts as a crash."""
        self._ledger.try_now()
        self._comparisons.write()
        self._slots.settle(self._outcomes.write())
        unfinished = list(self._running.values())
        for running in unfinished:
            self._evict(running)
        if unfinished and self._error is None:
            self._ledger.release([running.lease for running in unfinished])
            log.info("%d unfinished prompts were released", len(unfinished))
        if pending := self._ledger.pending():  # others must hear the bells that this worker will not
            self._ring(min(pending, self._serving.slots))
        if self._ledger.stop_worker() is None:
            self._outcomes.say_what_is_left()
