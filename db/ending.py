"""How a batch ends: once, when its last prompt has."""

from collections.abc import Sequence

from sqlalchemy import Connection, and_, case, exists, update

from db.clock import now
from db.tables import Batch, BatchStatus, Prompt, PromptStatus

UNENDED_PROMPT = (PromptStatus.PENDING, PromptStatus.RUNNING)
ENDED_AT = {
    BatchStatus.COMPLETED.value: Batch.completed_at,
    BatchStatus.CANCELLED.value: Batch.cancelled_at,
    BatchStatus.EXPIRED.value: Batch.expired_at,
}
ENDABLE_BATCH = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


def end_batches(conn: Connection, batch_id: str | None = None) -> Sequence[str]:
    """End every batch (or the one named) whose prompts have all ended. Who gets its id owns what follows.

    After completing prompts, call this in a transaction of its own: two workers that complete a batch's last
    prompts at once do not see each other's until both have committed.
    """
    time = now(conn)
    of_batch = Prompt.batch_id == Batch.id
    expired = exists().where(of_batch, Prompt.status == PromptStatus.EXPIRED)
    status = case(
        (Batch.status == BatchStatus.CANCELLING, BatchStatus.CANCELLED),
        (expired, BatchStatus.EXPIRED),
        else_=BatchStatus.COMPLETED,
    )
    open_batch = [
        Batch.sealed_at.is_not(None),
        Batch.status.in_(ENDABLE_BATCH),
        ~exists().where(of_batch, Prompt.status.in_(UNENDED_PROMPT)),
    ]
    if batch_id is not None:
        open_batch.append(Batch.id == batch_id)
    ended = conn.execute(
        update(Batch).where(and_(*open_batch)).values(status=status).returning(Batch.id, Batch.status)
    ).all()
    for row in ended:
        reached = ENDED_AT[row.status]
        conn.execute(
            update(Batch).where(Batch.id == row.id).values({Batch.finalizing_at: time, reached: time})
        )
    return [row.id for row in ended]
