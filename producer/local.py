"""The embedded stack: a broker and one worker, brought up where nothing is configured.

Every submit that uses it holds a shared lock; the last one out stops what was started, whoever started it.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from producer.embedded_broker import broker_command, ping, socket_path
from producer.errors import ProducerError
from producer.local_process import LocalProcess

DRAIN_SECONDS = 10  # running prompts may finish so long; then they are released
BROKER_START_SECONDS = 10

LOGGED_ERROR = re.compile(r" (?:ERROR|CRITICAL) [^:]+: (.+)")  # without the log's time and process


def require_worker_extra() -> None:
    """A local worker runs in this Python: say what is missing before anything is stored."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        raise ProducerError(
            "the local worker needs torch and transformers: pip install 'specmill[worker]' "
            "(or name a fleet's broker with SPECMILL_BROKER_URL)"
        )


class LocalStack:
    def __init__(self, state_dir: Path, users: int | None = None) -> None:
        """`users`: the shared lock, where it was handed over by another process."""
        self._state_dir = state_dir
        self._folder = state_dir / "local"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._broker = LocalProcess(self._folder / "broker.lock")
        self._worker: LocalProcess | None = None
        self._users = users
        self._log_start = 0

    @property
    def log(self) -> Path:
        return self._state_dir / "worker.log"

    @property
    def broker_url(self) -> str:
        return f"redis+socket://{self._broker.facts()['socket']}"

    def running_broker_url(self) -> str | None:
        """For those who only ring; None where no stack runs."""
        return self.broker_url if self._broker.is_running() else None

    @property
    def users(self) -> int:
        assert self._users is not None, "not attached"
        return self._users

    def attach(self, pair: str, pair_fingerprint: str, database_url: str) -> None:
        """Take part in the running stack; start what of it is not running."""
        with self._changing():
            self._users = os.open(self._folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)
            self._start_broker()
            self.adopt(pair, pair_fingerprint, database_url)
            assert self._worker is not None
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            if not self._worker.is_running():
                self._worker.start(_worker_command(pair), self._worker_env(database_url), self.log)

    def adopt(self, pair: str, pair_fingerprint: str, database_url: str) -> None:
        """Name the worker of this pair, as declared now and on this database."""
        name = hashlib.blake2b(
            f"{pair} {pair_fingerprint} {database_url}".encode(), digest_size=6
        ).hexdigest()
        self._worker = LocalProcess(self._folder / f"worker-{name}.lock")

    def check(self) -> None:
        """Raise if the stack can no longer finish the work."""
        assert self._worker is not None, "not attached"
        if not self._worker.is_running():
            reason = _last_clear_line(self.log, self._log_start)
            raise ProducerError(f"the local worker ended: {reason} (its log: {self.log})")
        if not self._broker.is_running():
            log = self._folder / "broker.log"
            raise ProducerError(f"the embedded broker ended; submit again to continue (its log: {log})")

    def detach(self) -> bool:
        """Leave; the last one out drains the worker and stops the broker. False where others go on."""
        if self._users is None:
            return False
        try:
            with self._changing():
                self.forget()
                if not self._is_unused():
                    return False
                for process in self._workers():
                    process.stop(DRAIN_SECONDS + 10)
                self._broker.stop(5)
                return True
        except KeyboardInterrupt:
            self._stop_at_once()
            raise

    def forget(self) -> None:
        """Give up our part, or only our handle where another process has inherited it."""
        os.close(self.users)
        self._users = None

    def _stop_at_once(self) -> None:
        if self._is_unused():
            for process in (*self._workers(), self._broker):
                process.kill()

    def _workers(self) -> list[LocalProcess]:
        return [LocalProcess(file) for file in sorted(self._folder.glob("worker-*.lock"))]

    def _is_unused(self) -> bool:
        users = os.open(self._folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(users)

    @contextmanager
    def _changing(self) -> Generator[None]:
        """One at a time starts or stops the stack. Freed by the system if its holder is killed."""
        descriptor = os.open(self._folder / "change.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _start_broker(self) -> None:
        if self._broker.is_running():
            if ping(self._broker.facts().get("socket")):
                return
            self._broker.kill()  # hung, or killed half way into its start
        socket = socket_path(self._folder)
        socket.unlink(missing_ok=True)
        log = self._folder / "broker.log"
        self._broker.start(broker_command(socket, self._folder), os.environ, log, socket=str(socket))
        end = time.monotonic() + BROKER_START_SECONDS
        while not ping(str(socket)):
            if not self._broker.is_running() or time.monotonic() > end:
                reason = _last_clear_line(log, 0)
                self._broker.kill()
                raise ProducerError(f"the embedded broker did not start: {reason} (its log: {log})")
            time.sleep(0.05)

    def _worker_env(self, database_url: str) -> dict[str, str]:
        return os.environ | {
            "SPECMILL_BROKER_URL": self.broker_url,
            "SPECMILL_DATABASE_URL": database_url,
            "SPECMILL_STATE_DIR": str(self._state_dir),
        }


def _worker_command(pair: str) -> list[str]:
    start = "from worker.cli import main; main()"
    return [
        *(sys.executable, "-c", start, "start"),
        *("--devices", "cpu", "--pair", pair, "--grace", str(DRAIN_SECONDS)),
    ]


def _last_clear_line(log: Path, start: int) -> str:
    """The last line that says what went wrong, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 65536))
            lines = [
                line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]
    except OSError:
        lines = []
    clear = [found[1] for line in lines if (found := LOGGED_ERROR.search(line))]
    return (clear or lines or ["it said nothing"])[-1]
