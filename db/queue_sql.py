"""The queue's statements, built once: building one costs more than SQLite takes to run it."""

from sqlalchemy import (
    CTE,
    Executable,
    Integer,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    update,
)

from db.counts import count_in_batch
from db.tables import SUSPECTED_AT, Batch, BatchStatus, Prompt, PromptStatus

RUNNING_COUNTED = 10_000  # batches with more in flight count as served alike

CLAIMABLE_BATCH = and_(
    Batch.pair == bindparam("pair"),
    Batch.status == BatchStatus.IN_PROGRESS,
    Batch.sealed_at.is_not(None),
    Batch.paused_at.is_(None),
    or_(Batch.deadline.is_(None), Batch.deadline > bindparam("now")),
)

# Order and fairness: by priority, then from the least-served batch, then the oldest.
BATCHES_TO_SERVE = (
    select(Batch.id, func.coalesce(Batch.sampling_resolved, Batch.sampling), Batch.seed)
    .where(CLAIMABLE_BATCH, count_in_batch(PromptStatus.PENDING, 1) > 0)
    .order_by(
        Batch.priority.desc(),
        count_in_batch(PromptStatus.RUNNING, RUNNING_COUNTED),
        Batch.created_at,
        Batch.id,
    )
)

# A prompt whose holders died this often runs alone: one more death is surely its own fault, and fails it.
# Written out, as otherwise SQLite does not take the index that has only these.
IS_SUSPECT = and_(
    Prompt.status == literal_column(f"'{PromptStatus.PENDING}'"),
    Prompt.crashes >= literal_column(str(SUSPECTED_AT)),
)

NEXT_PROMPTS = (
    select(Prompt.id)
    .where(
        Prompt.batch_id == bindparam("batch"),
        Prompt.status == PromptStatus.PENDING,
        Prompt.crashes < SUSPECTED_AT,
    )
    .order_by(Prompt.position)
    .limit(bindparam("room", type_=Integer))
    .with_for_update(skip_locked=True)
    .cte("next_prompts")
)

SUSPECTS = (
    select(Prompt.id).join(Batch, Batch.id == Prompt.batch_id).where(IS_SUSPECT, CLAIMABLE_BATCH).limit(1)
)

NEXT_SUSPECT = (
    SUSPECTS.order_by(Batch.priority.desc(), Prompt.id)
    .with_for_update(of=Prompt, skip_locked=True)
    .cte("next_suspect")
)


def _take(chosen: CTE) -> Executable:
    return (
        update(Prompt)
        .where(Prompt.id.in_(select(chosen.c.id)))
        .values(
            status=PromptStatus.RUNNING,
            attempt=Prompt.attempt + 1,
            owner=bindparam("holder"),
            lease_until=bindparam("until"),
            claimed_at=bindparam("now"),
        )
        .returning(
            Prompt.id,
            Prompt.attempt,
            Prompt.batch_id,
            Prompt.position,
            Prompt.custom_id,
            Prompt.messages,
            Prompt.text,
            Prompt.chat_template_kwargs,
            Prompt.sampling,
            Prompt.n,
            Prompt.crashes,
            Prompt.created_at,
        )
    )


CLAIM = _take(NEXT_PROMPTS)
CLAIM_SUSPECT = _take(NEXT_SUSPECT)

SAMPLING_OF = select(func.coalesce(Batch.sampling_resolved, Batch.sampling), Batch.seed).where(
    Batch.id == bindparam("batch")
)

COUNT_PENDING = select(
    func.coalesce(func.sum(count_in_batch(PromptStatus.PENDING, bindparam("at_most", type_=Integer))), 0)
).where(CLAIMABLE_BATCH)

UNRUNG = (
    select(Prompt.id)
    .where(
        Prompt.batch_id == bindparam("batch"),
        Prompt.status == PromptStatus.PENDING,
        or_(Prompt.rung_at.is_(None), Prompt.rung_at < bindparam("long_ago")),
    )
    .order_by(Prompt.position)
    .limit(bindparam("room", type_=Integer))
)

# The fence, in two steps: the rows are locked (in one order, against deadlocks), then those still held are
# written. Both match the status; the first hands back the attempts to compare.
LOCK_RUNNING = (
    select(Prompt.id, Prompt.attempt, Prompt.owner, Prompt.n)
    .where(Prompt.id.in_(bindparam("ids", expanding=True)), Prompt.status == PromptStatus.RUNNING)
    .order_by(Prompt.id)
    .with_for_update()
)

RENEW = (
    update(Prompt)
    .where(Prompt.id.in_(bindparam("ids", expanding=True)))
    .values(lease_until=bindparam("until"))
)

RELEASE = (
    update(Prompt)
    .where(Prompt.id.in_(bindparam("ids", expanding=True)))
    .values(
        status=PromptStatus.PENDING,
        attempt=Prompt.attempt + 1,
        owner=None,
        lease_until=None,
        claimed_at=None,
        rung_at=None,
    )
)

SUCCEED = (
    update(Prompt)
    .where(Prompt.id == bindparam("prompt"))
    .values(
        status=PromptStatus.SUCCEEDED,
        rendered=bindparam("as_seen"),
        owner=None,
        lease_until=None,
        ended_at=bindparam("now"),
    )
)

FAIL = (
    update(Prompt)
    .where(Prompt.id == bindparam("prompt"))
    .values(
        status=PromptStatus.FAILED,
        error_code=bindparam("code"),
        error_message=bindparam("reason"),
        owner=None,
        lease_until=None,
        ended_at=bindparam("now"),
    )
)
