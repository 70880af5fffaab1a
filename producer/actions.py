"""`producer cancel`, `pause`, `resume` and `priority`: asking twice is as good as once."""

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine

from db import actions, batches
from db.batches import BatchRow
from db.connect import reading, writing
from db.counts import counts_by_status
from db.ending import end_batches
from db.settings import DatabaseSettings
from db.tables import BatchStatus
from producer.console import emit, emit_json, plural, say
from producer.database import open_database
from producer.priorities import priority_name
from producer.ringing import wake

PATIENCE = 10.0  # seconds for prompts that workers are writing just now
PAUSE = 0.05


def cancel(reference: str, as_json: bool) -> None:
    engine = open_database()
    batch_id, asked = _act(engine, reference, actions.cancel)
    batch = _cancel_prompts(engine, batch_id)
    told = _told(engine, batch, changed=asked)
    prompts = told["prompts"]
    kept = sum(prompts[status] for status in ("succeeded", "failed"))
    if batch.status == BatchStatus.CANCELLING:
        line = f"{batch_id} is being cancelled: workers are writing the last of its prompts"
    elif asked:
        line = (
            f"{batch_id} is {batch.status}: {plural(prompts['cancelled'], 'prompt')} cancelled, {kept:,} kept"
        )
    else:
        line = f"{batch_id} is {batch.status} already: nothing to cancel"
    _tell(told, line, as_json)


def pause(reference: str, as_json: bool) -> None:
    engine = open_database()
    batch_id, changed = _act(engine, reference, actions.pause)
    line = f"{batch_id} is paused" if changed else f"{batch_id} is paused already"
    _tell(_told(engine, _get(engine, batch_id), changed), line, as_json)
    if changed:
        say(f"workers give back what they run of it within seconds; go on: producer resume {batch_id}")


def resume(reference: str, as_json: bool) -> None:
    settings = DatabaseSettings()
    engine = open_database(settings)
    batch_id, changed = _act(engine, reference, actions.resume)
    batch = _get(engine, batch_id)
    if changed:
        wake(engine, settings, batch.pair, batch.priority)
    line = f"{batch_id} goes on" if changed else f"{batch_id} is not paused: nothing to resume"
    _tell(_told(engine, batch, changed), line, as_json)


def set_priority(reference: str, priority: int, as_json: bool) -> None:
    engine = open_database()
    batch_id, changed = _act(
        engine, reference, lambda conn, batch_id: actions.set_priority(conn, batch_id, priority)
    )
    already = "" if changed else " already"
    line = f"{batch_id} has {priority_name(priority)} priority{already}"
    _tell(_told(engine, _get(engine, batch_id), changed), line, as_json)


def _act(engine: Engine, reference: str, action: Callable[[Connection, str], bool]) -> tuple[str, bool]:
    with writing(engine) as conn:
        batch_id = batches.get(conn, reference).id
        return batch_id, action(conn, batch_id)


def _cancel_prompts(engine: Engine, batch_id: str) -> BatchRow:
    """A chunk a transaction, so that workers write in between; the reaper gets what is locked now."""
    end = time.monotonic() + PATIENCE
    while True:
        with writing(engine) as conn:
            moved = actions.cancel_prompts(conn, batch_id)
        if moved:
            continue
        with writing(engine) as conn:
            end_batches(conn, batch_id)
            batch = batches.get(conn, batch_id)
        if batch.status != BatchStatus.CANCELLING or time.monotonic() > end:
            return batch
        time.sleep(PAUSE)


def _get(engine: Engine, batch_id: str) -> BatchRow:
    with reading(engine) as conn:
        return batches.get(conn, batch_id)


def _told(engine: Engine, batch: BatchRow, changed: bool) -> dict[str, Any]:
    with reading(engine) as conn:
        prompts = counts_by_status(conn, [batch.id])[batch.id]
    return {
        "batch_id": batch.id,
        "changed": changed,
        "status": batch.status,
        "paused": batch.paused_at is not None,
        "priority": priority_name(batch.priority),
        "prompts": prompts,
    }


def _tell(told: dict[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        emit_json(told)
    else:
        emit(line)
