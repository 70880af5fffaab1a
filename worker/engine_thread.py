"""The thread that alone touches the engine: it submits, cancels and steps, and hands out what has ended."""

import logging
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from worker.claims import Compared
from worker.engine.proof import Comparison
from worker.engine.types import Failure, Generation, Request
from worker.errors import DeviceLost, tells_of_lost_device

log = logging.getLogger("specmill.worker")


class SteppingEngine(Protocol):
    """What the thread needs of an engine."""

    @property
    def busy(self) -> bool: ...

    @property
    def rows_in_flight(self) -> int: ...

    @property
    def max_rows(self) -> int: ...

    def submit(self, request: Request) -> None: ...

    def cancel(self, request_id: Hashable) -> None: ...

    def step(self) -> Sequence[Generation | Failure]: ...

    def take_comparisons(self) -> Sequence[Comparison]: ...


class EngineThread:
    """Runs an engine until `stop`. If the engine raises, the thread ends and says so through `on_death`."""

    def __init__(
        self,
        engine: SteppingEngine,
        on_ended: Callable[[Sequence[Generation | Failure]], None],
        on_compared: Callable[[Compared], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        # As of the last step, for whoever watches.
        self.rows_in_flight = 0
        self.max_rows = engine.max_rows  # fewer for a while after memory ran out
        self.steps = 0  # begun
        self.is_stepping = False
        self._engine = engine
        self._on_ended = on_ended
        self._on_compared = on_compared
        self._on_death = on_death
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, request: Request) -> None:
        self._orders.put(lambda: self._engine.submit(request))

    def cancel(self, request_id: Hashable) -> None:
        """Evict at the next step; one that has already ended may still be handed out."""
        self._orders.put(lambda: self._engine.cancel(request_id))

    def stop(self) -> None:
        """Stop after the current step. Daemonic, so that a step that hangs cannot keep the process alive."""
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.busy and (ended := self._step()):
                    self._on_ended(ended)
        except BaseException as error:  # whatever it was, the runner must hear that the engine is gone
            if tells_of_lost_device(str(error)):
                log.error("the device is lost, and only a fresh process gets it back: %s", error)
            else:
                log.exception("the engine died")
            self._on_death(error)

    def _step(self) -> Sequence[Generation | Failure]:
        self.steps += 1
        self.is_stepping = True
        ended = self._engine.step()
        self.is_stepping = False
        self.rows_in_flight, self.max_rows = self._engine.rows_in_flight, self._engine.max_rows
        for output in ended:
            if isinstance(output, Failure) and tells_of_lost_device(output.message):
                raise DeviceLost(output.message)  # every step from now on would fail its rows
        if comparisons := self._engine.take_comparisons():  # told before the end of the rows they are about
            self._on_compared(Compared(comparisons))
        return ended

    def _obey(self) -> bool:
        """Carry out the orders that came in; wait for one if there is nothing to do. False: stop."""
        wait = not self._engine.busy
        while True:
            try:
                order = self._orders.get(block=wait)
            except queue.Empty:
                return True
            if order is None:
                return False
            order()
            wait = False
