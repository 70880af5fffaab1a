"""Moving prompts on, whoever holds them: their leases become void, so that a holder's later write fails."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select, update

from db.tables import Prompt

CHUNK = 1000  # prompts a statement


def unlocked(*conditions: ColumnElement[bool]) -> Select[int]:
    """Up to a chunk of prompts that nobody is writing: to wait for them could end in a deadlock."""
    return select(Prompt.id).where(*conditions).limit(CHUNK).with_for_update(skip_locked=True)


def move(conn: Connection, which: Select[int], **values: Any) -> list[str]:
    """Void the leases of these prompts and move them on; their new statuses."""
    chosen = which.cte("chosen")
    moved = conn.execute(
        update(Prompt)
        .where(Prompt.id.in_(select(chosen.c.id)))
        .values(attempt=Prompt.attempt + 1, owner=None, lease_until=None, **values)
        .returning(Prompt.status)
    )
    return list(moved.scalars())


def move_all(conn: Connection, which: Select[int], **values: Any) -> list[str]:
    """`move` chunk after chunk, until no prompt is left that nobody is writing."""
    statuses: list[str] = []
    while True:
        moved = move(conn, which, **values)
        statuses += moved
        if len(moved) < CHUNK:
            return statuses
