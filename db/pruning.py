"""Deleting old batches, but never a result that a batch which stays has reused."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.orm import aliased

from db.clock import now
from db.tables import OPEN_BATCH, Batch, Prompt

CHUNK = 500  # prompts a transaction: their samples go with them, and workers write in between

ENDED_AT = func.coalesce(Batch.completed_at, Batch.cancelled_at, Batch.expired_at, Batch.failed_at)


@dataclass(frozen=True, slots=True)
class Old:
    """A batch that ended long enough ago, and what keeps it."""

    id: str
    name: str | None
    prompts: int
    reused_by: tuple[str, ...]  # batches that stay and show its results
    is_latest: bool  # of its source, and those are to be kept

    @property
    def may_go(self) -> bool:
        return not self.reused_by and not self.is_latest


def old_batches(conn: Connection, older_than: timedelta, keep_latest: bool = False) -> list[Old]:
    """Newest first: a batch reuses only older ones, and so goes before those."""
    ended_before = now(conn) - older_than
    newest = select(
        Batch.id, Batch.name, Batch.source_key, Batch.status, ENDED_AT.label("ended_at")
    ).order_by(Batch.created_at.desc(), Batch.id.desc())
    users = _users(conn)
    sources: set[str] = set()
    going: set[str] = set()
    found: list[Old] = []
    for row in conn.execute(newest).all():
        is_latest = keep_latest and row.source_key not in sources
        sources.add(row.source_key)
        if row.status in OPEN_BATCH or row.ended_at > ended_before:
            continue
        count = select(func.count()).where(Prompt.batch_id == row.id)
        reused_by = tuple(sorted(users[row.id] - going))
        old = Old(row.id, row.name, conn.execute(count).scalar_one(), reused_by, is_latest)
        if old.may_go:
            going.add(old.id)
        found.append(old)
    return found


def delete_some(conn: Connection, batch_id: str) -> bool:
    """Delete a chunk of an ended batch, at last its row; False once nothing more of it can go.

    Call it, each time in a transaction of its own, until then. What a batch submitted meanwhile reuses stays.
    """
    status = conn.execute(select(Batch.status).where(Batch.id == batch_id).with_for_update()).scalar()
    if status is None or status in OPEN_BATCH:  # somebody else pruned it, or retried what failed
        return False
    first = select(Prompt.id).where(Prompt.batch_id == batch_id).order_by(Prompt.id).limit(CHUNK)
    ids = conn.execute(first.with_for_update()).scalars().all()
    reused = select(Prompt.id).where(Prompt.reused_from.in_(ids)).limit(1)
    if conn.execute(reused).scalar() is not None:
        return False
    conn.execute(delete(Prompt).where(Prompt.id.in_(ids)))
    if len(ids) == CHUNK:
        return True
    conn.execute(delete(Batch).where(Batch.id == batch_id))
    return False


def exists(conn: Connection, batch_id: str) -> bool:
    return conn.execute(select(Batch.id).where(Batch.id == batch_id)).first() is not None


def _users(conn: Connection) -> dict[str, set[str]]:
    """For each batch those that reuse results of it."""
    root, user = aliased(Prompt), aliased(Prompt)
    pairs = select(root.batch_id, user.batch_id).join(user, user.reused_from == root.id).distinct()
    users: dict[str, set[str]] = defaultdict(set)
    for owner, other in conn.execute(pairs):
        users[owner].add(other)
    return users
