"""The reaper: a thread in every process that returns what the dead left and rings for the forgotten."""

import logging
import threading
from collections.abc import Callable

from sqlalchemy import Engine

from db import queue
from db.connect import reading, writing
from db.errors import DatabaseUnreachable
from db.reaping import reap

log = logging.getLogger("specmill.worker")

LONGEST_PAUSE = 15.0  # seconds between two passes, at most
OVERDUE_SECONDS = 30.0  # a prompt that waits this long after its last bell is rung for again


class Reaper:
    """Outside Celery's task path, so that a worker whose slots are all taken still reaps."""

    def __init__(self, db: Engine, pair: str, lease_seconds: float, ring: Callable[[int], bool]) -> None:
        self._db = db
        self._pair = pair
        self._lease_seconds = lease_seconds
        self._ring = ring
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        pause = min(LONGEST_PAUSE, self._lease_seconds / 4)
        while not self._stop.is_set():
            try:
                self.tick()
            except DatabaseUnreachable:
                pass  # the runner says so, and the next pass tries again
            except Exception:  # a reaper that stops is a fleet that slowly forgets
                log.exception("a reaper's pass failed")
            self._stop.wait(pause)

    def tick(self) -> None:
        """One pass."""
        with writing(self._db) as conn:
            report = reap(conn, self._lease_seconds)
        if report.expired_leases:
            log.warning(
                "reaped: %d prompts of silent workers are pending again, %d failed as poison",
                report.expired_leases - report.poisoned,
                report.poisoned,
            )
        overdue = min(OVERDUE_SECONDS, self._lease_seconds / 2)
        with reading(self._db) as conn:
            waiting = queue.unrung(conn, self._pair, overdue)
        if waiting and self._ring(len(waiting)):
            with writing(self._db) as conn:
                queue.mark_rung(conn, waiting)
