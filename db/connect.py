"""Engines, and the two ways to talk to them: `writing` and `reading`."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from db.errors import DatabaseError
from db.explain import describe, explain
from db.settings import with_driver

TRUSTED_SECONDS = 1.0  # a connection that served so lately is taken to be alive
BUSY_SECONDS = 30  # how long SQLite waits for another writer

# A server that vanished without a word is noticed within half a minute, not after the kernel's two hours.
POSTGRES_ARGS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "specmill",
}


def connect(url: str) -> Engine:
    """An engine for a SQLite file or a PostgreSQL server; nothing is contacted yet."""
    try:
        parsed = make_url(with_driver(url))
    except ArgumentError:
        raise DatabaseError(
            "The database URL cannot be read. Expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME."
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise DatabaseError(
                    "An in-memory SQLite cannot be shared with workers: name a file, sqlite:///PATH."
                )
            timeout = float(str(parsed.query.get("timeout", BUSY_SECONDS)))
            engine = create_engine(
                parsed.difference_update_query(["timeout"]),
                connect_args={"timeout": timeout},
                hide_parameters=True,
            )
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        case "postgresql":
            args = {key: value for key, value in POSTGRES_ARGS.items() if key not in parsed.query}
            try:
                # Parameters are prompts and answers: an error's text, which is logged, must not quote them.
                engine = create_engine(parsed, connect_args=args, hide_parameters=True)
            except ModuleNotFoundError:
                raise DatabaseError(
                    f"{describe(url)} needs the PostgreSQL driver: pip install 'specmill[postgres]'"
                ) from None
            event.listen(engine, "checkin", _note_idle)
            event.listen(engine, "checkout", _refuse_stale)
            return engine
        case other:
            raise DatabaseError(f"{describe(url)}: {other} is not supported; use SQLite or PostgreSQL.")


@contextmanager
def writing(engine: Engine) -> Generator[Connection]:
    """A transaction that writes; on SQLite it holds the write lock from its beginning."""
    with _translated(engine), engine.connect() as conn:
        conn.execution_options(specmill_writes=True)
        with conn.begin():
            yield conn


@contextmanager
def reading(engine: Engine) -> Generator[Connection]:
    """A transaction that only reads. Keep it short: on SQLite its snapshot holds up the WAL's checkpoint."""
    with _translated(engine), engine.connect() as conn, conn.begin():
        yield conn


def is_local(engine: Engine) -> bool:
    """Whether the database is a file on this machine, which workers elsewhere cannot share."""
    return engine.dialect.name == "sqlite"


@contextmanager
def _translated(engine: Engine) -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        if translated := explain(error, engine.url):
            raise translated from error
        raise


def _note_idle(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info["specmill_idle_since"] = time.monotonic()


def _refuse_stale(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """A server that was restarted meanwhile has forgotten the connection.

    Where it has just served nobody asks: a busy worker would spend one round trip in six on that.
    """
    idle_since = record.info.get("specmill_idle_since")
    if idle_since is None or time.monotonic() - idle_since < TRUSTED_SECONDS:
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except Exception as error:  # whatever the driver makes of it, a fresh connection is the answer
        raise DisconnectionError from error


def _prepare_sqlite(connection: Any, _record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver's own BEGIN is off: _begin_sqlite decides
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(conn: Connection) -> None:
    writes = conn.get_execution_options().get("specmill_writes", False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
