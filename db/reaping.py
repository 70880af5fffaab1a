"""The reaper's pass: prompts of the dead return, deadlines are kept, batches end."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, literal, select, update

from db.clock import now
from db.ending import UNENDED_PROMPT, end_batches
from db.tables import Batch, BatchStatus, Prompt, PromptStatus, ReaperTick

CHUNK = 1000  # prompts a statement
POISON = "poison"  # error code of a prompt that outlived too many of its workers


@dataclass(frozen=True, slots=True)
class ReapReport:
    """What a pass did. `skipped`: leases were left alone, as everyone was away or another reaper is at it."""

    expired_leases: int
    poisoned: int
    expired_prompts: int
    ended_batches: Sequence[str]
    skipped: bool


def reap(conn: Connection, lease_seconds: float, crash_limit: int = 3) -> ReapReport:
    """One pass. Any number of reapers may run; the tick row lets one at a time through."""
    time = now(conn)
    skipped = not _may_reap(conn, time, lease_seconds)
    expired, poisoned = (0, 0) if skipped else _end_leases(conn, time, crash_limit)
    past_deadline = _keep_deadlines(conn, time)
    return ReapReport(expired, poisoned, past_deadline, end_batches(conn), skipped)


def _may_reap(conn: Connection, time: datetime, lease_seconds: float) -> bool:
    """Stamp the tick. After a gap in ticks nobody reaps for one lease, so that the living renew first."""
    tick = conn.execute(
        select(ReaperTick.ticked_at, ReaperTick.quiet_until).with_for_update(skip_locked=True)
    ).one_or_none()
    if tick is None:
        return False
    quiet_until = tick.quiet_until
    if time - tick.ticked_at > timedelta(seconds=lease_seconds / 2):
        quiet_until = time + timedelta(seconds=lease_seconds)
    elif quiet_until is not None and quiet_until <= time:
        quiet_until = None
    conn.execute(update(ReaperTick).values(ticked_at=time, quiet_until=quiet_until))
    return quiet_until is None


def _end_leases(conn: Connection, time: datetime, crash_limit: int) -> tuple[int, int]:
    """Take prompts from holders that did not renew; those that did so too often do not come back."""
    poisonous = Prompt.crashes + 1 >= crash_limit
    reason = (
        f"The workers that ran this prompt died or went silent, {crash_limit} times; it is not tried again."
    )
    running = _unlocked(Prompt.status == PromptStatus.RUNNING, Prompt.lease_until < time)
    overdue = running.order_by(Prompt.lease_until)
    statuses = _end_holding(
        conn,
        overdue,
        status=case((poisonous, PromptStatus.FAILED), else_=PromptStatus.PENDING),
        error_code=case((poisonous, POISON)),
        error_message=case((poisonous, reason)),
        ended_at=case((poisonous, literal(time, Prompt.ended_at.type))),
        crashes=Prompt.crashes + 1,
        rung_at=None,
    )
    return len(statuses), statuses.count(PromptStatus.FAILED)


def _keep_deadlines(conn: Connection, time: datetime) -> int:
    """Expire what a passed deadline finds unended. Rows being written wait for the next pass."""
    late = select(Batch.id).where(
        Batch.deadline <= time, Batch.status == BatchStatus.IN_PROGRESS, Batch.sealed_at.is_not(None)
    )
    expired = 0
    for batch_id in conn.execute(late).scalars().all():
        unended = _unlocked(Prompt.batch_id == batch_id, Prompt.status.in_(UNENDED_PROMPT))
        expired += len(_end_holding(conn, unended, status=PromptStatus.EXPIRED, ended_at=time))
    return expired


def _unlocked(*conditions: ColumnElement[bool]) -> Select[int]:
    return select(Prompt.id).where(*conditions).limit(CHUNK).with_for_update(skip_locked=True)


def _end_holding(conn: Connection, which: Select[int], **values: Any) -> list[str]:
    """Void the leases of these prompts and move them on; their new statuses."""
    chosen = which.cte("chosen")
    move = (
        update(Prompt)
        .where(Prompt.id.in_(select(chosen.c.id)))
        .values(attempt=Prompt.attempt + 1, owner=None, lease_until=None, **values)
        .returning(Prompt.status)
    )
    statuses: list[str] = []
    while True:
        moved = conn.execute(move).scalars().all()
        statuses += moved
        if len(moved) < CHUNK:
            return statuses
