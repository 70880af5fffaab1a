"""Ringing for a batch, after its rows are committed."""

from sqlalchemy import Engine

from db.connect import reading, writing
from db.fleet import live_workers
from db.queue import mark_rung, pending_count, unrung
from producer.console import warn
from worker.wire.app import BrokerError, make_app
from worker.wire.bells import WINDOW, ring


def ring_for(engine: Engine, broker_url: str, pair: str, priority: int) -> None:
    """Wake the pair's workers: about two bells for each of their slots, never one for each prompt."""
    with reading(engine) as conn:
        slots = sum(worker.slots for worker in live_workers(conn, pair))
        window = 2 * slots or WINDOW
        pending = pending_count(conn, pair, at_most=window)
    if not pending:
        return
    app = make_app(broker_url)
    try:
        rung = ring(app, pair, pending, priority, window=window)
    except BrokerError as error:
        warn(str(error))  # the rows are stored: a reaper rings for what no bell was rung for
        return
    finally:
        app.close()
    with writing(engine) as conn:
        mark_rung(conn, unrung(conn, pair, older_than=0, limit=rung) if rung else [])
