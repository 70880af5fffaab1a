"""A background process that outlives its starter and is found again by whoever comes next."""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05


class LocalProcess:
    """The process inherits a lock on its file: it lives as long as the lock is held.

    A recorded pid alone could be anyone's by now; while the lock is held it is ours, and may be signalled.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path, **facts: Any) -> None:
        """Start it in a session of its own, so that the terminal's Ctrl-C does not reach it."""
        # Waits for those who only look; whoever starts holds the stack's lock, so nobody else starts.
        with self._open(os.O_RDWR | os.O_CREAT) as lock, log.open("ab") as output:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.ftruncate(lock, 0)
            process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
            os.pwrite(lock, json.dumps({"pid": process.pid, **facts}).encode(), 0)

    def is_running(self) -> bool:
        try:
            with self._open(os.O_RDWR) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def facts(self) -> dict[str, Any]:
        """What was written down when it was started."""
        try:
            return json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return {}

    def stop(self, patience: float) -> None:
        """SIGTERM, and SIGKILL to its whole session when patience ends."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + patience
        while self.is_running() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._signal(signal.SIGKILL, session=True)
        end = time.monotonic() + 5
        while self.is_running() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        self.file.unlink(missing_ok=True)

    def _signal(self, number: int, session: bool = False) -> None:
        pid = self.facts().get("pid")
        if pid is not None and self.is_running():
            with suppress(ProcessLookupError):
                (os.killpg if session else os.kill)(pid, number)

    @contextmanager
    def _open(self, flags: int) -> Generator[int]:
        descriptor = os.open(self.file, flags | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
