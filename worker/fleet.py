"""The supervisor: one process a device, restarted when it dies, drained when told to stop."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from worker.devices import Device
from worker.errors import EXIT_REFUSED

log = logging.getLogger("specmill.worker")

EXIT_DRAINED, EXIT_CRASH_LOOP, EXIT_USAGE = 0, 1, 2

LONGEST_PAUSE = 60.0  # seconds before a restart
LOOK_SECONDS = 0.1  # between two looks at the processes
AFTER_GRACE_SECONDS = 15.0  # for a drained process to write its last results and unload
HURRY_SECONDS = 5.0  # the same, once a second signal asked for haste


@dataclass(frozen=True)
class Patience:
    """How much dying is taken for bad luck."""

    quick_seconds: float = 60.0  # a process that died younger than this, nothing done, died quickly
    quick_deaths: int = 5  # so many in a row are a crash loop
    first_pause: float = 1.0  # before a restart; doubled with every quick death


@dataclass
class _Post:
    """A device and the process that holds it, if one does."""

    device: Device
    process: subprocess.Popen[bytes] | None = None
    lifeline: socket.socket | None = None  # its standard input; it says a word here when a prompt succeeds
    started_at: float = 0.0
    starts: int = 0
    quick_deaths: int = 0
    restart_at: float = 0.0


class Fleet:
    def __init__(
        self,
        devices: Sequence[Device],
        command: Callable[[Device], Sequence[str]],
        grace: float,
        patience: Patience = Patience(),
    ) -> None:
        self._posts = [_Post(device) for device in devices]
        self._command = command
        self._grace = grace
        self._patience = patience
        self._signals = 0
        self._exit_code: int | None = None  # set: stopping, with this in the end

    def run(self) -> int:
        """Until a signal (0), a configuration that no restart mends (2) or a crash loop (1)."""
        assert threading.current_thread() is threading.main_thread(), "signals arrive in the main thread only"
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        while self._exit_code is None:
            for post in self._posts:
                self._tend(post)
            if self._signals:
                self._exit_code = EXIT_DRAINED
            time.sleep(LOOK_SECONDS)
        self._drain()
        return self._exit_code

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _tend(self, post: _Post) -> None:
        now = time.monotonic()
        if post.process is None:
            if now >= post.restart_at and not self._signals and self._exit_code is None:
                self._start(post)
        elif (code := post.process.poll()) is not None:
            post.process = None
            self._bury(post, code, now)

    def _start(self, post: _Post) -> None:
        post.starts += 1
        post.started_at = time.monotonic()
        post.lifeline, its_end = socket.socketpair()
        with its_end:
            post.process = subprocess.Popen(
                self._command(post.device),
                env={**os.environ, **post.device.environment},
                stdin=its_end.fileno(),  # when we die, however suddenly, it reads the end and drains
                start_new_session=True,  # Ctrl-C reaches us alone, and we drain
            )

    def _bury(self, post: _Post, code: int, now: float) -> None:
        device = post.device.name
        has_succeeded = _hung_up(post)
        if self._signals:
            return
        if code == EXIT_REFUSED and post.starts == 1:
            self._exit_code = EXIT_USAGE  # the process has said why
            return
        # A machine that can serve is in no crash loop: prompts that kill are counted one by one, and fail.
        quick = not has_succeeded and now - post.started_at < self._patience.quick_seconds
        post.quick_deaths = post.quick_deaths + 1 if quick else 1
        # What served before and is refused now waits for its broker or database: not a crash, however often.
        if quick and code != EXIT_REFUSED and post.quick_deaths >= self._patience.quick_deaths:
            log.error(
                "%s: died %d times in a row within %.0f s of its start (last with %s): giving up. "
                "Its own messages above say why.",
                device,
                post.quick_deaths,
                self._patience.quick_seconds,
                _describe(code),
            )
            self._exit_code = EXIT_CRASH_LOOP
            return
        pause = min(LONGEST_PAUSE, self._patience.first_pause * 2 ** (post.quick_deaths - 1))
        post.restart_at = now + pause
        log.warning(
            "%s: the process ended with %s; a fresh one starts in %.0f s", device, _describe(code), pause
        )

    def _drain(self) -> None:
        """SIGTERM to all, once more with a second signal, SIGKILL to what is left when the time is up."""
        deadline = time.monotonic() + self._grace + AFTER_GRACE_SECONDS
        self._tell(signal.SIGTERM)
        hurried = False
        while self._alive():
            if self._signals > 1 and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + HURRY_SECONDS)
                self._tell(signal.SIGTERM)
            if time.monotonic() >= deadline:
                log.error("%d processes did not end in time and are killed", len(self._alive()))
                self._tell(signal.SIGKILL)
                deadline = float("inf")
            time.sleep(LOOK_SECONDS)

    def _alive(self) -> list[subprocess.Popen[bytes]]:
        return [
            post.process for post in self._posts if post.process is not None and post.process.poll() is None
        ]

    def _tell(self, number: signal.Signals) -> None:
        for process in self._alive():
            process.send_signal(number)


def _hung_up(post: _Post) -> bool:
    """Close a dead process's lifeline; whether a prompt had succeeded in it."""
    assert post.lifeline is not None
    with post.lifeline:
        try:
            return bool(post.lifeline.recv(1, socket.MSG_DONTWAIT))
        except (BlockingIOError, ConnectionError):  # a child of it still holds its end, or it ended unread
            return False


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def command_for(pair: str, concurrency: int, grace: float) -> Callable[[Device], Sequence[str]]:
    """How to start the worker process of a device."""
    return lambda device: [
        sys.executable,
        "-m",
        "worker.process",
        f"--pair={pair}",
        f"--device={device.name}",
        f"--concurrency={concurrency}",
        f"--grace={grace}",
    ]
