"""A database that cannot be used is one clear message, with what to do and no password."""

import os
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, text

from db import schema
from db.clock import now
from db.connect import connect, is_local, reading, writing
from db.errors import DatabaseError, DatabaseUnreachable, SchemaMismatch
from db.explain import describe
from tests.servers import NOBODY


def refusal(url: str) -> str:
    """What somebody is told who writes to this database."""
    engine = connect(url)
    with pytest.raises(DatabaseUnreachable) as refused, writing(engine) as conn:
        conn.execute(text("CREATE TABLE mark (n int)"))
    engine.dispose()
    return str(refused.value)


def refusal_without_rights(url: str) -> str:
    """The same, told to a user who is not root: root may write anywhere."""
    if os.geteuid() != 0:
        return refusal(url)
    context = get_context("fork")  # what was imported stays so: that user may not read the checkout
    receiver, sender = context.Pipe(duplex=False)

    def as_nobody() -> None:
        os.setuid(NOBODY)
        sender.send(refusal(url))

    process = context.Process(target=as_nobody)
    process.start()
    process.join(30)
    assert receiver.poll(), "no message came back"
    return str(receiver.recv())


@pytest.fixture
def open_folder() -> Callable[[Path], None]:
    """Lets every user pass through the folders that pytest keeps to itself."""

    def open_up(folder: Path) -> None:
        for above in (folder, *folder.parents[:3]):
            if above.owner() == folder.owner() and above != Path("/tmp"):
                above.chmod(0o755)

    return open_up


def test_what_is_written_is_read(database: Engine) -> None:
    with writing(database) as conn:
        conn.execute(text("CREATE TABLE mark (n int)"))
        conn.execute(text("INSERT INTO mark VALUES (1)"))
    with pytest.raises(DatabaseError), writing(database) as conn:  # noqa: PT012 (the first half must not stay)
        conn.execute(text("INSERT INTO mark VALUES (2)"))
        conn.execute(text("INSERT INTO missing VALUES (2)"))
    with reading(database) as conn:
        assert conn.execute(text("SELECT n FROM mark")).scalars().all() == [1]


def test_sqlite_runs_with_a_write_ahead_log_and_foreign_keys(sqlite_url: str) -> None:
    engine = connect(sqlite_url)
    with reading(engine) as conn:
        pragmas = {
            name: conn.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 1, "busy_timeout": 30_000}
    assert is_local(engine)
    engine.dispose()


def test_the_clock_is_the_databases_in_utc_and_finer_than_a_second(database: Engine) -> None:
    with reading(database) as conn:
        first, second = now(conn), now(conn)
    assert first.utcoffset() == timedelta(0)
    assert 0 <= (second - first).total_seconds() < 1
    with reading(database) as conn:
        assert any(now(conn).microsecond for _ in range(3))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    message = refusal(f"sqlite:///{tmp_path / 'nowhere' / 'specmill.db'}")
    assert message == f"The folder {tmp_path / 'nowhere'} of the database does not exist. Create it first."


def test_a_folder_in_the_files_place_is_named(tmp_path: Path) -> None:
    assert refusal(f"sqlite:///{tmp_path}") == f"{tmp_path} is a folder; expected a SQLite file."


def test_a_read_only_folder_is_named(tmp_path: Path, open_folder: Callable[[Path], None]) -> None:
    open_folder(tmp_path)
    tmp_path.chmod(0o555)
    message = refusal_without_rights(f"sqlite:///{tmp_path / 'specmill.db'}")
    assert f"cannot be opened: no permission to write in {tmp_path}" in message
    assert "SPECMILL_STATE_DIR" in message


def test_a_read_only_file_is_named(tmp_path: Path, open_folder: Callable[[Path], None]) -> None:
    open_folder(tmp_path)
    path = tmp_path / "specmill.db"
    engine = connect(f"sqlite:///{path}")
    schema.upgrade(engine)
    engine.dispose()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    message = refusal_without_rights(f"sqlite:///{path}")
    assert str(path) in message
    assert "read-only" in message or "no permission" in message


def test_a_database_that_stays_locked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "specmill.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode=WAL")
    holder.execute("BEGIN IMMEDIATE")
    message = refusal(f"sqlite:///{path}?timeout=0.05")
    assert f"The database {path} stayed locked by another process" in message
    holder.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "specmill.db"
    path.write_text("Dear diary, " * 100)
    assert refusal(f"sqlite:///{path}") == (
        f"{path} is not a SQLite database. Move it away or name another file."
    )


def test_an_unreachable_server_is_named_without_its_password(tmp_path: Path) -> None:
    message = refusal(f"postgresql://me:secret@/mill?host={tmp_path}")
    assert "cannot be reached" in message
    assert "SPECMILL_DATABASE_URL" in message
    assert "secret" not in message


def test_a_wrong_password_is_told_without_showing_it(postgres_url: str) -> None:
    message = refusal(postgres_url.replace("postgres@", "guarded:open-sesame@"))
    assert "refused the login" in message
    assert "password authentication failed" in message
    assert "open-sesame" not in message


def test_a_database_that_does_not_exist_is_named(postgres_url: str) -> None:
    message = refusal(postgres_url.replace("/test_", "/missing_"))
    assert "does not exist" in message


def test_a_server_that_lets_nobody_write_is_named(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    message = refusal(postgres_url)
    assert "does not let us write" in message
    assert "read-only transaction" in message


def test_a_server_that_goes_away_in_mid_transaction_is_named(postgres_url: str) -> None:
    engine = connect(postgres_url)
    with pytest.raises(DatabaseUnreachable, match="cannot be reached"), writing(engine) as conn:
        conn.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    with writing(engine) as conn:  # and the next transaction finds a fresh connection
        assert conn.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize("fixture", ["sqlite_url", "postgres_url"])
def test_a_database_without_tables_names_the_command(fixture: str, request: pytest.FixtureRequest) -> None:
    engine = connect(request.getfixturevalue(fixture))
    with pytest.raises(SchemaMismatch, match=r"Create them: producer db upgrade"), reading(engine) as conn:
        conn.execute(text("SELECT * FROM prompts"))
    engine.dispose()


def test_a_bug_of_ours_stays_what_it_is(database: Engine) -> None:
    with pytest.raises(Exception, match="syntax") as bug, reading(database) as conn:
        conn.execute(text("SELEKT 1"))
    assert not isinstance(bug.value, DatabaseError)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("specmill.db", "cannot be read. Expected sqlite:///PATH or postgresql://"),
        ("mysql://me:secret@host/mill", r"mysql://me:\*\*\*@host/mill: mysql is not supported"),
        ("sqlite://", "in-memory SQLite cannot be shared"),
        ("sqlite:///:memory:", "in-memory SQLite cannot be shared"),
    ],
)
def test_urls_we_cannot_use_are_refused(url: str, message: str) -> None:
    with pytest.raises(DatabaseError, match=message):
        connect(url)


def test_passwords_are_hidden_wherever_they_stand() -> None:
    assert describe("postgresql://me:secret@host/mill") == "postgresql://me:***@host/mill"
    assert "secret" not in describe("postgresql://me@host/mill?password=secret")
