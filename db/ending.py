"""How a batch ends: once, when its last prompt has."""

from collections.abc import Sequence

from sqlalchemy import Connection, and_, bindparam, case, select, update

from db.clock import now
from db.counts import count_in_batch
from db.tables import Batch, BatchStatus, PromptStatus

UNENDED_PROMPT = (PromptStatus.PENDING, PromptStatus.RUNNING)
ENDED_AT = {
    BatchStatus.COMPLETED.value: Batch.completed_at,
    BatchStatus.CANCELLED.value: Batch.cancelled_at,
    BatchStatus.EXPIRED.value: Batch.expired_at,
}

HAS_ENDED = and_(
    Batch.sealed_at.is_not(None),
    Batch.status.in_((BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)),
    *(count_in_batch(status, 1) == 0 for status in UNENDED_PROMPT),
)

# Locked first, then looked at again: on PostgreSQL an UPDATE that waited for a retry would see the batch as
# the retry left it, but the prompts as they were before.
LOCK_ENDED = select(Batch.id).where(HAS_ENDED).order_by(Batch.id).with_for_update()

END = (
    update(Batch)
    .where(Batch.id.in_(bindparam("batches", expanding=True)), HAS_ENDED)
    .values(
        status=case(
            (Batch.status == BatchStatus.CANCELLING, BatchStatus.CANCELLED),
            # Where some were retried after a cancel or a deadline, and others not.
            (count_in_batch(PromptStatus.CANCELLED, 1) > 0, BatchStatus.CANCELLED),
            (count_in_batch(PromptStatus.EXPIRED, 1) > 0, BatchStatus.EXPIRED),
            else_=BatchStatus.COMPLETED,
        )
    )
    .returning(Batch.id, Batch.status)
)


def end_batches(conn: Connection, batch_id: str | None = None) -> Sequence[str]:
    """End every batch (or the one named) whose prompts have all ended. Who gets its id owns what follows.

    After completing prompts, call this in a transaction of its own: two workers that complete a batch's last
    prompts at once do not see each other's until both have committed.
    """
    lock = LOCK_ENDED if batch_id is None else LOCK_ENDED.where(Batch.id == batch_id)
    over = conn.execute(lock).scalars().all()
    if not over:
        return []
    time = now(conn)
    ended = conn.execute(END, {"batches": over}).all()
    for row in ended:
        times = {Batch.finalizing_at: time, ENDED_AT[row.status]: time}
        conn.execute(update(Batch).where(Batch.id == row.id).values(times))
    return [row.id for row in ended]
