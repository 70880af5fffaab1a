"""Never alive and idle: what stands still in a process is noticed, and the process ended for a fresh one."""

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from sqlalchemy import Engine

from db import queue
from db.connect import reading
from db.errors import DatabaseUnreachable
from worker.vitals import Vitals

log = logging.getLogger("specmill.worker")


@dataclass(frozen=True)
class Patience:
    """Seconds that each thing may stand still, by looks `interval` apart."""

    interval: float = 5.0
    dead: float = 30.0  # a thread that ended takes the process with it by itself; this is if it does not
    turn: float = 300.0  # the runner's, a locked database included
    step: float = 600.0  # the engine's
    claim: float = 120.0  # claimable prompts and room for them, but no bell is heard


class _Stall:
    """Counts looks at the same state. Looks, not time: a process that was stopped meanwhile saw nothing."""

    def __init__(self, patience: float, interval: float) -> None:
        self._limit = max(1, round(patience / interval))
        self._state: Hashable = None
        self._looks = 0

    def lasts(self, state: Hashable) -> bool:
        """Whether this state was seen for as long as one may be patient. None: nothing is wrong."""
        self._looks = self._looks + 1 if state is not None and state == self._state else 0
        self._state = state
        return self._looks >= self._limit


class Watchdog:
    """`alarm` is told, once, in one line, why this process must end; it must not return to idleness."""

    def __init__(
        self,
        vitals: Callable[[], Vitals],
        work_waits: Callable[[], bool],
        alarm: Callable[[str], None],
        patience: Patience = Patience(),
    ) -> None:
        """`work_waits`: there are claimable prompts, and a bell for them could be heard."""
        self._vitals = vitals
        self._work_waits = work_waits
        self._alarm = alarm
        self._patience = patience
        self._dead = _Stall(patience.dead, patience.interval)
        self._turn = _Stall(patience.turn, patience.interval)
        self._step = _Stall(patience.step, patience.interval)
        self._claim = _Stall(patience.claim, patience.interval)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._patience.interval):
            if reason := self.look():
                self._alarm(reason)
                return

    def look(self) -> str | None:
        """What has stood still for too long."""
        seen = self._vitals()
        patience = self._patience
        if self._dead.lasts("dead" if not (seen.runner_alive and seen.engine_alive) else None):
            who = "engine" if not seen.engine_alive else "runner"
            return f"the {who}'s thread ended and the process did not"
        if self._turn.lasts(seen.turns if seen.runner_alive else None):
            return f"the runner has not moved for {patience.turn:.0f} s"
        if self._step.lasts(seen.steps if seen.is_stepping else None):
            return f"the engine is stuck in one step for {patience.step:.0f} s"
        if self._claim.lasts(seen.claims if seen.is_hungry and self._work_waits() else None):
            return (
                f"prompts wait and there is room for them, but for {patience.claim:.0f} s no bell was heard"
            )
        return None


def work_waits(db: Engine, pair: str) -> bool:
    """Whether prompts are claimable, as far as the database answers."""
    try:
        with reading(db) as conn:
            return queue.pending_count(conn, pair, at_most=1) > 0
    except DatabaseUnreachable:
        return False
