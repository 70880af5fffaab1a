"""Bringing a database's tables to this version's, and refusing one that is not there yet."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, inspect, text

from db.connect import reading, writing
from db.errors import SchemaMismatch
from db.explain import NO_TABLES, describe

HEAD = "0001"  # the last revision in migrations/versions; they are numbered, so that order is comparison

_UPGRADE_LOCK = 0x5BEC_0001  # PostgreSQL's advisory lock: two upgrades at once would both create the tables


def upgrade(engine: Engine) -> None:
    """Create or migrate the tables, all or nothing; harmless where nothing is to be done."""
    with writing(engine) as conn:
        if conn.dialect.name == "postgresql":
            conn.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK})
        found = _revision(conn)
        if found is not None and found > HEAD:
            raise _too_new(engine, found)
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["connection"] = conn
        command.upgrade(config, "head")


def check(engine: Engine) -> None:
    """Raise SchemaMismatch, with the command that mends it, unless the tables are this version's."""
    with reading(engine) as conn:
        found = _revision(conn)
    if found is None:
        raise SchemaMismatch(f"The database {describe(engine.url)} {NO_TABLES}")
    if found < HEAD:
        raise SchemaMismatch(
            f"The database {describe(engine.url)} is at version {found}, this Specmill needs {HEAD}. "
            "Migrate it: producer db upgrade"
        )
    if found > HEAD:
        raise _too_new(engine, found)


def _too_new(engine: Engine, found: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"The database {describe(engine.url)} is at version {found}, newer than this Specmill's {HEAD}. "
        "Upgrade specmill on this machine: pip install --upgrade specmill"
    )


def _revision(conn: Connection) -> str | None:
    if not inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
