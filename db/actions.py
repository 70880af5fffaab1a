"""What people do to a batch while workers run it: cancel, pause, resume, change its priority.

Each is one write to the batch's row, which claims and renewals read; asking twice changes nothing more.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, select, update

from db.batches import get
from db.clock import now
from db.ending import UNENDED_PROMPT
from db.errors import ActionRefused
from db.moving import move, unlocked
from db.queue import CHUNK, Lease
from db.tables import OPEN_BATCH, Batch, BatchStatus, Prompt, PromptStatus

RUNS = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
STARTS_OR_RUNS = (BatchStatus.VALIDATING, *RUNS)

ARE_PAUSED = select(Batch.id).where(
    Batch.id.in_(bindparam("batches", expanding=True)), Batch.paused_at.is_not(None)
)
BATCH_OF = select(Prompt.id, Prompt.batch_id).where(Prompt.id.in_(bindparam("ids", expanding=True)))


def cancel(conn: Connection, batch_id: str) -> bool:
    """From now on nothing of it is claimed; `cancel_prompts` ends the rest. False: asked for before."""
    if get(conn, batch_id).status == BatchStatus.VALIDATING:
        raise ActionRefused(
            f"{batch_id} is still being submitted, and nothing of it runs: end that submit with Ctrl-C. "
            "What a submit that was cut off left behind never runs."
        )
    return _change(
        conn,
        batch_id,
        Batch.status.in_(RUNS),
        status=BatchStatus.CANCELLING,
        cancelling_at=now(conn),
        paused_at=None,
    )


def cancel_prompts(conn: Connection, batch_id: str) -> int:
    """Cancel a chunk of what has not ended, pending or running; how many. What has finished is kept.

    Call it, each time in a transaction of its own, until nothing is left. If it never comes to that, the
    reaper goes on.
    """
    unended = unlocked(
        Prompt.batch_id == batch_id,
        Prompt.status.in_(UNENDED_PROMPT),
        select(Batch.status).where(Batch.id == batch_id).scalar_subquery() == BatchStatus.CANCELLING,
    )
    return len(move(conn, unended, status=PromptStatus.CANCELLED, ended_at=now(conn)))


def pause(conn: Connection, batch_id: str) -> bool:
    """Nothing is claimed until `resume`; what runs is released at its holder's next renewal."""
    _require(conn, batch_id, STARTS_OR_RUNS, "paused")
    return _change(
        conn, batch_id, Batch.status.in_(STARTS_OR_RUNS), Batch.paused_at.is_(None), paused_at=now(conn)
    )


def resume(conn: Connection, batch_id: str) -> bool:
    """Claimable again. Bells rung before the pause are forgotten, so that new ones are rung at once."""
    _require(conn, batch_id, STARTS_OR_RUNS, "resumed")
    resumed = _change(conn, batch_id, Batch.paused_at.is_not(None), paused_at=None)
    if resumed:
        conn.execute(
            update(Prompt)
            .where(
                Prompt.batch_id == batch_id,
                Prompt.status == PromptStatus.PENDING,
                Prompt.rung_at.is_not(None),
            )
            .values(rung_at=None)
        )
    return resumed


def set_priority(conn: Connection, batch_id: str, priority: int) -> bool:
    """From the next claim on; prompts that run already go on."""
    _require(conn, batch_id, OPEN_BATCH, "given another priority")
    return _change(conn, batch_id, Batch.priority != priority, priority=priority)


def paused_leases(conn: Connection, leases: Iterable[Lease]) -> Sequence[Lease]:
    """Those whose batch is paused: their holder releases them."""
    held = list(leases)
    found: list[Lease] = []
    for start in range(0, len(held), CHUNK):
        chunk = held[start : start + CHUNK]
        batch_of = dict(conn.execute(BATCH_OF, {"ids": [lease.prompt_id for lease in chunk]}).all())
        paused = set(conn.execute(ARE_PAUSED, {"batches": sorted(set(batch_of.values()))}).scalars())
        found += [lease for lease in chunk if batch_of.get(lease.prompt_id) in paused]
    return found


def _require(conn: Connection, batch_id: str, statuses: Sequence[BatchStatus], what: str) -> None:
    status = get(conn, batch_id).status
    if status not in statuses:
        raise ActionRefused(f"{batch_id} is {status}: it can no longer be {what}")


def _change(conn: Connection, batch_id: str, *conditions: ColumnElement[bool], **values: Any) -> bool:
    """Whether the batch was as the conditions say, and so has changed."""
    changed = conn.execute(
        update(Batch).where(Batch.id == batch_id, *conditions).values(**values).returning(Batch.id)
    )
    return changed.first() is not None
