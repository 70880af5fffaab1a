"""The command as a person runs it, in this process: its streams and exit code."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine

from db import schema
from db.connect import connect
from producer.cli import main

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test."""
    for name in ("SPECMILL_BROKER_URL", "SPECMILL_DATABASE_URL", "SPECMILL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECMILL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Run:
    """Run `producer ARGUMENTS`; a bug's exception fails the test."""

    def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def fleet(database: Engine, database_url: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Broker and database configured, no worker: what is submitted stays pending."""
    monkeypatch.setenv("SPECMILL_DATABASE_URL", database_url)
    monkeypatch.setenv("SPECMILL_BROKER_URL", valkey_url)
    return database


@pytest.fixture
def local(tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """As `fleet`, once, for what does not depend on the database."""
    url = f"sqlite:///{tmp_path / 'specmill.db'}"
    engine = connect(url)
    schema.upgrade(engine)
    monkeypatch.setenv("SPECMILL_DATABASE_URL", url)
    monkeypatch.setenv("SPECMILL_BROKER_URL", valkey_url)
    yield engine
    engine.dispose()
