"""A worker is heard of while it loads its model, which may take minutes."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Engine

from db import fleet
from db.connect import writing
from db.errors import DatabaseError
from db.tables import WorkerState

log = logging.getLogger("specmill.worker")

BEAT_SECONDS = 5.0


@contextmanager
def heard_of(db: Engine, worker_id: str, seconds: float = BEAT_SECONDS) -> Generator[None]:
    """A heartbeat every so many seconds, from a thread."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(seconds):
            try:
                with writing(db) as conn:
                    fleet.heartbeat(conn, worker_id, WorkerState.STARTING, {})
            except DatabaseError as error:
                log.warning("loading goes on unheard of: %s", error)

    thread = threading.Thread(target=beat, name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
