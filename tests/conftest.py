"""Fixtures for every test: real servers, started once a session, and a database of its own for each test."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import settings
from sqlalchemy import Engine

from db import schema
from db.connect import connect
from tests.servers import create_database, drop_database, redis_binary, run_postgres, run_redis, run_valkey

# No example is a timed test: machines are shared. With CI set, hypothesis fixes its seeds by itself.
for profile in ("default", "ci"):
    settings.register_profile(profile, settings.get_profile(profile), deadline=None)
settings.load_profile(settings.get_current_profile_name())

_names = (f"test_{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL's maintenance database."""
    with run_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database."""
    name = next(_names)
    yield create_database(postgres_server, name)
    drop_database(postgres_server, name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that is not there yet, in a folder that is."""
    return f"sqlite:///{tmp_path / 'specmill.db'}"


@pytest.fixture(scope="session")
def _migrated_postgres(postgres_server: str) -> str:
    engine = connect(create_database(postgres_server, "migrated"))
    schema.upgrade(engine)
    engine.dispose()
    return "migrated"


@pytest.fixture(scope="session")
def _migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "specmill.db"
    engine = connect(f"sqlite:///{path}")
    schema.upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with this version's tables, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        path = request.getfixturevalue("tmp_path") / "specmill.db"
        shutil.copy(request.getfixturevalue("_migrated_sqlite"), path)
        yield f"sqlite:///{path}"
    else:
        server: str = request.getfixturevalue("postgres_server")
        name = next(_names)
        yield create_database(server, name, template=request.getfixturevalue("_migrated_postgres"))
        drop_database(server, name)


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    """An engine on `database_url`."""
    engine = connect(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """An embedded broker for the session."""
    with run_valkey() as url:
        yield url


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """The embedded broker, empty."""
    with redis.Redis(unix_socket_path=valkey_server.removeprefix("redis+socket://")) as client:
        client.flushall()
    return valkey_server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Debian's redis-server on a loopback port for the session."""
    binary = redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    with run_redis(binary) as url:
        yield url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """Debian's redis-server, empty."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server
