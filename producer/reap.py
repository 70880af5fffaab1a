"""`producer reap`: what a worker's reaper thread does, once."""

from dataclasses import asdict

from db.connect import reading, writing
from db.fleet import list_pairs
from db.reaping import reap
from producer.console import emit, emit_json, plural
from producer.database import open_database
from producer.ringing import ring_for
from worker.wire.settings import WireSettings

NORMAL_PRIORITY = 1


def reap_once(as_json: bool) -> None:
    settings = WireSettings()
    engine = open_database()
    with writing(engine) as conn:
        report = reap(conn, settings.lease_seconds)
    if settings.broker_url is not None:
        with reading(engine) as conn:
            pairs = [pair.name for pair in list_pairs(conn)]
        for pair in pairs:
            ring_for(engine, settings.broker_url.get_secret_value(), pair, NORMAL_PRIORITY)
    if as_json:
        emit_json(asdict(report))
        return
    if report.skipped:
        emit("leases were left alone: no reaper ran for a while, so the living may renew first; run it again")
    emit(
        f"{plural(report.expired_leases, 'lease')} ended ({report.poisoned:,} failed for good), "
        f"{plural(report.expired_prompts, 'prompt')} past a deadline, "
        f"{plural(len(report.ended_batches), 'batch')} ended".replace("batchs", "batches")
    )
