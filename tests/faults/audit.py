"""The database's own witness: triggers that note every change of a status, in the change's transaction."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

# (from, to): by how much the attempt grows. 0: the holder itself ends it; 1: the holder loses its say.
LEGAL_MOVES = {
    ("pending", "running"): {1},
    ("running", "succeeded"): {0},
    ("running", "failed"): {0, 1},  # by its holder, or as poison by the reaper
    ("running", "pending"): {1},
    **{(old, new): {1} for old in ("pending", "running") for new in ("cancelled", "expired")},
    **{(old, "pending"): {1} for old in ("failed", "cancelled", "expired")},
}

_TABLES = (
    "CREATE TABLE moves (batch_id TEXT, prompt_id BIGINT, old TEXT, new TEXT, grown INTEGER, owner TEXT)",
    "CREATE TABLE ends (batch_id TEXT, status TEXT)",
)
_MOVED = (
    "INSERT INTO moves VALUES "
    "(NEW.batch_id, NEW.id, OLD.status, NEW.status, NEW.attempt - OLD.attempt, OLD.owner);"
)
_ENDED = "INSERT INTO ends VALUES (NEW.id, NEW.status);"
_ENDS = "OLD.status <> NEW.status AND NEW.status IN ('completed', 'cancelled', 'expired')"


def install(conn: Connection) -> None:
    for statement in _TABLES:
        conn.execute(text(statement))
    _trigger(conn, "prompts", "OLD.status <> NEW.status", _MOVED)
    _trigger(conn, "batches", _ENDS, _ENDED)


def forget(conn: Connection) -> None:
    for table in ("moves", "ends"):
        conn.execute(text(f"DELETE FROM {table}"))


def _trigger(conn: Connection, table: str, when: str, action: str) -> None:
    head = f"CREATE TRIGGER audit_{table} AFTER UPDATE OF status ON {table} FOR EACH ROW WHEN ({when})"
    if conn.dialect.name == "sqlite":
        conn.execute(text(f"{head} BEGIN {action} END"))
        return
    conn.execute(
        text(
            f"CREATE FUNCTION audit_{table}() RETURNS trigger LANGUAGE plpgsql "
            f"AS $$ BEGIN {action} RETURN NULL; END $$"
        )
    )
    conn.execute(text(f"{head} EXECUTE FUNCTION audit_{table}()"))


def illegal_moves(conn: Connection, batch_id: str | None = None) -> Sequence[Any]:
    """Changes of status that the transition table does not have."""
    rows = conn.execute(text(f"SELECT * FROM moves {_of(batch_id)}"), {"batch": batch_id})
    return [row for row in rows if row.grown not in LEGAL_MOVES.get((row.old, row.new), ())]


def count_moves(conn: Connection, batch_id: str, old: str, new: str) -> int:
    query = text("SELECT count(*) FROM moves WHERE batch_id = :batch AND old = :old AND new = :new")
    return conn.execute(query, {"batch": batch_id, "old": old, "new": new}).scalar_one()


def ends(conn: Connection, batch_id: str | None = None) -> Sequence[Any]:
    """Every end that batches reached: batch_id, status."""
    return conn.execute(text(f"SELECT * FROM ends {_of(batch_id)}"), {"batch": batch_id}).all()


def _of(batch_id: str | None) -> str:
    return "" if batch_id is None else "WHERE batch_id = :batch"
