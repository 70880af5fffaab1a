"""Running the two commands as a person does: real processes, their output kept."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent


def environment(state: Path, **settings: str) -> dict[str, str]:
    """This process's environment with nothing of Specmill configured but its state folder and `settings`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPECMILL_")}
    return (
        clean | {"SPECMILL_STATE_DIR": str(state)} | {f"SPECMILL_{k.upper()}": v for k, v in settings.items()}
    )


def producer(
    *arguments: str, env: Mapping[str, str], timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "producer", *arguments],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.1)


def processes_using(state: Path) -> list[psutil.Process]:
    """Whatever still runs with this state folder in its environment."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("SPECMILL_STATE_DIR") == str(state):
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def worker(env: Mapping[str, str], log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`worker start`, drained at the end with SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / "worker", "start", "--devices", "cpu", *arguments],
            env=dict(env),
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
