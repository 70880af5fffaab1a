"""The reaper's pass: prompts of the dead return, deadlines are kept, batches end."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, case, literal, select, update

from db.actions import cancel_prompts
from db.clock import now
from db.ending import UNENDED_PROMPT, end_batches
from db.moving import CHUNK, move_all, unlocked
from db.tables import CRASH_LIMIT, Batch, BatchStatus, Prompt, PromptStatus, ReaperTick

POISON = "poison"  # error code of a prompt that outlived too many of its workers


@dataclass(frozen=True, slots=True)
class ReapReport:
    """What a pass did. `skipped`: leases were left alone, as everyone was away or another reaper is at it."""

    expired_leases: int
    poisoned: int
    expired_prompts: int
    ended_batches: Sequence[str]
    skipped: bool


def reap(conn: Connection, lease_seconds: float, crash_limit: int = CRASH_LIMIT) -> ReapReport:
    """One pass. Any number of reapers may run; the tick row lets one at a time through."""
    time = now(conn)
    skipped = not _may_reap(conn, time, lease_seconds)
    expired, poisoned = (0, 0) if skipped else _end_leases(conn, time, crash_limit)
    past_deadline = _keep_deadlines(conn, time)
    _go_on_cancelling(conn)
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
    overdue = unlocked(Prompt.status == PromptStatus.RUNNING, Prompt.lease_until < time).order_by(
        Prompt.lease_until
    )
    statuses = move_all(
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
        unended = unlocked(Prompt.batch_id == batch_id, Prompt.status.in_(UNENDED_PROMPT))
        expired += len(move_all(conn, unended, status=PromptStatus.EXPIRED, ended_at=time))
    return expired


def _go_on_cancelling(conn: Connection) -> None:
    """A cancel may have been cut off, or a worker that died may have held what it did not reach."""
    cancelling = select(Batch.id).where(Batch.status == BatchStatus.CANCELLING)
    for batch_id in conn.execute(cancelling).scalars().all():
        while cancel_prompts(conn, batch_id) == CHUNK:
            pass
