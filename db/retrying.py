"""Running ended prompts again: their batch re-opens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, select, update

from db.batches import CHUNK
from db.clock import now
from db.errors import ActionRefused
from db.tables import Batch, BatchStatus, Prompt, PromptStatus, Sample

RETRYABLE = (PromptStatus.FAILED, PromptStatus.CANCELLED, PromptStatus.EXPIRED)
NAMED = 5  # unknown prompts that a message names


@dataclass(frozen=True, slots=True)
class Retried:
    """What waits again. `left`: those asked for by name that have not failed, with their status."""

    prompts: int
    reopened: bool
    deadline_passed: bool  # and was taken away, for want of a new one
    left: Mapping[str, str] = field(default_factory=dict[str, str])


def retry(
    conn: Connection,
    batch_id: str,
    statuses: Sequence[PromptStatus] = RETRYABLE,
    custom_ids: Sequence[str] | None = None,
    completion_window: timedelta | None = None,
) -> Retried:
    """Prompts of these statuses (all of them, or those named) are pending again, as if they had never run."""
    assert set(statuses) <= set(RETRYABLE)
    # Locked before its prompts change: whoever ends batches waits, and then sees that there is work.
    batch = conn.execute(
        select(Batch.status, Batch.deadline).where(Batch.id == batch_id).with_for_update()
    ).one()
    if batch.status in (BatchStatus.VALIDATING, BatchStatus.CANCELLING):
        raise ActionRefused(f"{batch_id} is {batch.status}: wait for its end, then retry")
    left: dict[str, str] = {}
    if custom_ids is None:
        prompts = _again(conn, batch_id, Prompt.status.in_(statuses))
    else:
        found = _statuses(conn, batch_id, custom_ids)
        left = {name: status for name, status in found.items() if status not in statuses}
        names = [name for name in found if name not in left]
        prompts = sum(
            _again(conn, batch_id, Prompt.custom_id.in_(names[start : start + CHUNK]))
            for start in range(0, len(names), CHUNK)
        )
    if not prompts:
        return Retried(0, False, False, left)
    time = now(conn)
    passed = completion_window is None and batch.deadline is not None and batch.deadline <= time
    _open_again(conn, batch_id, batch.status, _deadline(batch.deadline, time, completion_window))
    return Retried(prompts, batch.status != BatchStatus.IN_PROGRESS, passed, left)


def _again(conn: Connection, batch_id: str, *which: Any) -> int:
    chosen = select(Prompt.id).where(Prompt.batch_id == batch_id, Prompt.status.in_(RETRYABLE), *which)
    conn.execute(delete(Sample).where(Sample.prompt_id.in_(chosen)))
    moved = conn.execute(
        update(Prompt)
        .where(Prompt.id.in_(chosen))
        .values(
            status=PromptStatus.PENDING,
            attempt=Prompt.attempt + 1,
            crashes=0,
            rung_at=None,
            claimed_at=None,
            ended_at=None,
            error_code=None,
            error_message=None,
            rendered=None,
        )
    )
    return moved.rowcount


def _open_again(conn: Connection, batch_id: str, status: str, deadline: datetime | None) -> None:
    values: dict[str, Any] = {"deadline": deadline}
    if status != BatchStatus.IN_PROGRESS:
        values |= {"status": BatchStatus.IN_PROGRESS, "in_progress_at": now(conn), "paused_at": None}
        ends = ("finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        values |= {f"{name}_at": None for name in ends}
    conn.execute(update(Batch).where(Batch.id == batch_id).values(**values))


def _deadline(old: datetime | None, time: datetime, window: timedelta | None) -> datetime | None:
    """One that has passed would expire everything at once."""
    if window is not None:
        return time + window
    return None if old is not None and old <= time else old


def _statuses(conn: Connection, batch_id: str, custom_ids: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(custom_ids), CHUNK):
        names = custom_ids[start : start + CHUNK]
        query = select(Prompt.custom_id, Prompt.status).where(Prompt.batch_id == batch_id)
        found |= dict(conn.execute(query.where(Prompt.custom_id.in_(names))).all())
    if unknown := [name for name in dict.fromkeys(custom_ids) if name not in found]:
        shown = ", ".join(f'"{name}"' for name in unknown[:NAMED])
        more = f" and {len(unknown) - NAMED:,} more" if len(unknown) > NAMED else ""
        raise ActionRefused(
            f"{batch_id} has no prompt {shown}{more}; nothing is retried. "
            f"Its custom_ids: producer export {batch_id}"
        )
    return found
