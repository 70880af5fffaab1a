"""`producer retry`: ended prompts wait again, and workers are woken for them."""

from collections.abc import Sequence
from datetime import timedelta

from db import batches
from db.connect import reading, writing
from db.retrying import RETRYABLE, retry
from db.settings import DatabaseSettings
from db.tables import PromptStatus
from producer.console import emit, emit_json, plural, say, warn
from producer.database import open_database
from producer.ringing import wake


def retry_prompts(
    reference: str,
    statuses: Sequence[str],
    custom_ids: Sequence[str],
    completion_window: timedelta | None,
    as_json: bool,
) -> None:
    """Of these statuses, or else those named."""
    settings = DatabaseSettings()
    engine = open_database(settings)
    wanted = [PromptStatus(status) for status in statuses] or RETRYABLE
    with writing(engine) as conn:
        batch_id = batches.get(conn, reference).id
        found = retry(conn, batch_id, wanted, custom_ids or None, completion_window)
    with reading(engine) as conn:
        batch = batches.get(conn, batch_id)
    if found.prompts and batch.paused_at is None:
        wake(engine, settings, batch.pair, batch.priority)
    for custom_id, status in found.left.items():
        warn(f'"{custom_id}" is {status}: left as it is')
    if found.deadline_passed:
        say("its deadline had passed and is removed; --completion-window sets a new one")
    if as_json:
        emit_json(
            {
                "batch_id": batch_id,
                "status": batch.status,
                "paused": batch.paused_at is not None,
                "retried": found.prompts,
                "reopened": found.reopened,
                "deadline": None if batch.deadline is None else batch.deadline.isoformat(),
                "left": dict(found.left),
            }
        )
        return
    if not found.prompts:
        emit(f"{batch_id} has nothing to retry")
        return
    wait = "" if batch.paused_at is None else f"; it is paused: producer resume {batch_id}"
    emit(f"{batch_id} is {batch.status}: {plural(found.prompts, 'prompt')} to run again{wait}")
