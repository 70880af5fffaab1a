"""The supervisor restarts what died, and knows when restarting is hopeless."""

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.devices import Device
from worker.errors import EXIT_REFUSED
from worker.fleet import EXIT_CRASH_LOOP, EXIT_DRAINED, EXIT_USAGE, Fleet, Patience

CPU = Device("cpu", {"PINNED": "yes"})
IMPATIENT = Patience(quick_seconds=60, quick_deaths=3, first_pause=0.01)

# Counts its starts in a file; at the one in argv[2] it asks the supervisor (its parent) to stop.
PROGRAM = """
import os, pathlib, signal, sys, time
assert os.environ["PINNED"] == "yes"
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
"""
DIE = PROGRAM + "sys.exit(1)"
DIE_ONCE_THEN_STOP = PROGRAM + (
    "if len(starts.read_text()) == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    "signal.signal(signal.SIGTERM, lambda *_: (starts.with_suffix('.drained').touch(), sys.exit(0)))\n"
    "os.kill(os.getppid(), signal.SIGTERM)\n"
    "time.sleep(60)"
)
STUBBORN = PROGRAM + (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)"
)
TWICE = PROGRAM + (
    "signals = []\n"
    "def told(*_):\n"
    "    signals.append(1)\n"
    "    if len(signals) == 2: starts.with_suffix('.hurried').touch(); sys.exit(0)\n"
    "    os.kill(os.getppid(), signal.SIGTERM)\n"
    "signal.signal(signal.SIGTERM, told)\n"
    "os.kill(os.getppid(), signal.SIGTERM)\n"
    "while True: time.sleep(0.05)"
)
REFUSE = PROGRAM + f"sys.exit({EXIT_REFUSED})"


@pytest.fixture(autouse=True)
def _keep_pytests_signal_handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    path = tmp_path / "starts"
    path.write_text("")
    return path


def run(program: str, starts: Path, processes: int = 1, grace: float = 30) -> int:
    command = [sys.executable, "-c", program, str(starts)]
    return Fleet([CPU] * processes, lambda _device: command, grace, IMPATIENT).run()


def test_a_crash_loop_ends_loudly(starts: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(DIE, starts) == EXIT_CRASH_LOOP
    assert starts.read_text() == "xxx"
    assert "died 3 times in a row" in caplog.records[-1].message


def test_prompts_that_kill_are_no_crash_loop_while_others_succeed(starts: Path) -> None:
    """Every other process dies having completed something: never three in a row that did nothing."""
    program = PROGRAM + (
        "num = len(starts.read_text())\n"
        "if num % 2: os.write(0, b'.')\n"
        "if num < 9: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)"
    )
    assert run(program, starts) == EXIT_DRAINED
    assert starts.read_text() == "x" * 9


def test_a_configuration_that_cannot_work_is_not_tried_again(starts: Path) -> None:
    assert run(REFUSE, starts) == EXIT_USAGE
    assert starts.read_text() == "x"


def test_a_killed_process_is_replaced_and_a_signal_drains(starts: Path) -> None:
    assert run(DIE_ONCE_THEN_STOP, starts) == EXIT_DRAINED
    assert starts.read_text() == "xx"
    assert starts.with_suffix(".drained").exists()


def test_what_does_not_drain_in_time_is_killed(starts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.fleet.AFTER_GRACE_SECONDS", 0.2)
    assert run(STUBBORN, starts, grace=0) == EXIT_DRAINED


def test_a_second_signal_is_passed_on_at_once(starts: Path) -> None:
    assert run(TWICE, starts, grace=3600) == EXIT_DRAINED
    assert starts.with_suffix(".hurried").exists()


def test_each_death_in_a_row_is_followed_by_a_longer_pause(
    starts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run(DIE, starts)
    pauses = [record.args[-1] for record in caplog.records if "a fresh one starts" in record.msg]
    assert pauses == [0.01, 0.02]
