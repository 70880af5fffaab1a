"""The queue's statements, built once: building one costs more than SQLite takes to run it."""

from sqlalchemy import Integer, and_, bindparam, exists, func, or_, select, update

from db.tables import Batch, BatchStatus, Prompt, PromptStatus

CLAIMABLE_BATCH = and_(
    Batch.pair == bindparam("pair"),
    Batch.status == BatchStatus.IN_PROGRESS,
    Batch.sealed_at.is_not(None),
    Batch.paused_at.is_(None),
    or_(Batch.deadline.is_(None), Batch.deadline > bindparam("now")),
)

OF_BATCH = Prompt.batch_id == Batch.id
RUNNING = select(func.count()).where(OF_BATCH, Prompt.status == PromptStatus.RUNNING).scalar_subquery()

# Order and fairness: by priority, then from the least-served batch, then the oldest.
BATCHES_TO_SERVE = (
    select(Batch.id, func.coalesce(Batch.sampling_resolved, Batch.sampling), Batch.seed)
    .where(CLAIMABLE_BATCH, exists().where(OF_BATCH, Prompt.status == PromptStatus.PENDING))
    .order_by(Batch.priority.desc(), RUNNING, Batch.created_at, Batch.id)
)

NEXT_PROMPTS = (
    select(Prompt.id)
    .where(Prompt.batch_id == bindparam("batch"), Prompt.status == PromptStatus.PENDING)
    .order_by(Prompt.position)
    .limit(bindparam("room", type_=Integer))
    .with_for_update(skip_locked=True)
    .cte("next_prompts")
)

CLAIM = (
    update(Prompt)
    .where(Prompt.id.in_(select(NEXT_PROMPTS.c.id)))
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

CLAIMABLE_PROMPTS = (
    select(Prompt.id).join(Batch, OF_BATCH).where(CLAIMABLE_BATCH, Prompt.status == PromptStatus.PENDING)
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
