"""Ringing for a batch, after its rows are committed."""

from sqlalchemy import Engine

from db.connect import reading, writing
from db.fleet import live_workers
from db.queue import mark_rung, pending_count, unrung
from db.settings import DatabaseSettings
from producer.console import warn
from producer.local import LocalStack
from worker.wire.app import BrokerError, make_app
from worker.wire.bells import WINDOW, ring
from worker.wire.settings import WireSettings


def wake(engine: Engine, settings: DatabaseSettings, pair: str, priority: int) -> None:
    """Ring the configured broker, else the embedded one if it runs; and say so if nobody can hear it."""
    configured = WireSettings().broker_url
    if configured is not None:
        broker_url = configured.get_secret_value()
    else:
        broker_url = LocalStack(settings.state_dir.absolute()).running_broker_url()
    with reading(engine) as conn:
        served = bool(live_workers(conn, pair))
    if not served:
        warn(f'no live worker serves pair "{pair}"; start one, or submit the same again to run it here')
    if broker_url is not None:
        ring_for(engine, broker_url, pair, priority)


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
