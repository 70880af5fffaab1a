"""Waiting for a batch's end."""

import time
from collections.abc import Callable

from sqlalchemy import Engine

from db.connect import reading
from db.fleet import live_workers
from db.reports import Progress, progress
from producer.progress import Pace, describe, display

POLL_SECONDS = 0.5
POLL_SHARE = 0.1  # of the time goes into asking, at most: counting a large batch takes a while


def wait(engine: Engine, batch_id: str, pair: str, check: Callable[[], None] | None = None) -> Progress:
    """Show progress until the batch has ended. `check` raises where it no longer can."""
    pace = Pace()
    with display() as show:
        while True:
            asked = time.monotonic()
            with reading(engine) as conn:
                current = progress(conn, batch_id)
                workers = live_workers(conn, pair)
            pace.see(current)
            show(describe(current, pace, workers), current.done, current.total)
            if current.ended:
                return current
            if check is not None:
                check()
            time.sleep(max(POLL_SECONDS, (time.monotonic() - asked) / POLL_SHARE))
