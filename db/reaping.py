"""The reaper's pass: prompts of the dead return, deadlines are kept, batches end."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, case, literal, select, update
from sqlalchemy.sql.functions import concat

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
    crashes = Prompt.crashes + 1
    poisonous = crashes >= crash_limit
    reasons = concat(
        "The worker processes running this prompt died or went silent ",
        crashes,
        " times: it is not tried again.",
    )
    leases = poisoned = 0
    while True:
        overdue = (
            select(Prompt.id)
            .where(Prompt.status == PromptStatus.RUNNING, Prompt.lease_until < time)
            .limit(CHUNK)
            .with_for_update(skip_locked=True)
            .cte("overdue")
        )
        statuses = (
            conn.execute(
                update(Prompt)
                .where(Prompt.id.in_(select(overdue.c.id)))
                .values(
                    status=case((poisonous, PromptStatus.FAILED), else_=PromptStatus.PENDING),
                    error_code=case((poisonous, POISON)),
                    error_message=case((poisonous, reasons)),
                    ended_at=case((poisonous, literal(time, Prompt.ended_at.type))),
                    crashes=crashes,
                    attempt=Prompt.attempt + 1,
                    owner=None,
                    lease_until=None,
                    rung_at=None,
                )
                .returning(Prompt.status)
            )
            .scalars()
            .all()
        )
        leases += len(statuses)
        poisoned += statuses.count(PromptStatus.FAILED)
        if len(statuses) < CHUNK:
            return leases, poisoned


def _keep_deadlines(conn: Connection, time: datetime) -> int:
    """Expire what a passed deadline finds unended. Rows being written wait for the next pass."""
    expired = 0
    late = select(Batch.id).where(
        Batch.deadline <= time, Batch.status == BatchStatus.IN_PROGRESS, Batch.sealed_at.is_not(None)
    )
    for batch_id in conn.execute(late).scalars().all():
        unended = (
            select(Prompt.id)
            .where(Prompt.batch_id == batch_id, Prompt.status.in_(UNENDED_PROMPT))
            .with_for_update(skip_locked=True)
            .cte("unended")
        )
        expired += conn.execute(
            update(Prompt)
            .where(Prompt.id.in_(select(unended.c.id)))
            .values(
                status=PromptStatus.EXPIRED,
                attempt=Prompt.attempt + 1,
                owner=None,
                lease_until=None,
                ended_at=time,
            )
        ).rowcount
    return expired
