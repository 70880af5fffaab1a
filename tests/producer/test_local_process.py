"""Background processes that are found again by a lock, not by a pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from producer.local_process import LocalProcess

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('here', flush=True); time.sleep(60)",
]


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LocalProcess]:
    process = LocalProcess(tmp_path / "p.lock")
    yield process
    process.kill()


def started(process: LocalProcess, command: list[str] = SLEEP) -> int:
    log = process.file.with_suffix(".log")
    process.start(command, os.environ, log, socket="s")
    until(lambda: "here" in log.read_text())
    return process.facts()["pid"]


def test_it_is_alive_as_long_as_it_holds_its_lock(process: LocalProcess) -> None:
    assert not process.is_running()
    pid = started(process)
    assert process.is_running()
    assert LocalProcess(process.file).is_running()
    assert process.facts() == {"pid": pid, "socket": "s"}
    assert os.getsid(pid) == pid != os.getsid(0)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process.is_running())


def test_it_outlives_its_starter(tmp_path: Path) -> None:
    file, log = tmp_path / "p.lock", tmp_path / "log"
    code = (
        "import os, pathlib; from producer.local_process import LocalProcess\n"
        f"LocalProcess(pathlib.Path({str(file)!r})).start({SLEEP!r}, os.environ, pathlib.Path({str(log)!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    process = LocalProcess(file)
    assert process.is_running()
    process.stop(5)
    assert not process.is_running()
    assert not file.exists()


def test_a_stale_file_with_somebody_elses_pid_is_nobody(process: LocalProcess) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process.file.write_text(f'{{"pid": {bystander.pid}}}')
        assert not process.is_running()
        process.stop(0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_one_that_ignores_sigterm_is_killed_when_patience_ends(process: LocalProcess) -> None:
    started(process, STUBBORN)
    begin = time.monotonic()
    process.stop(0.3)
    assert not process.is_running()
    assert 0.3 <= time.monotonic() - begin < 5
