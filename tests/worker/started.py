"""A `worker start` that a test began, and what it said."""

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class Started:
    process: subprocess.Popen[str]
    log: Path

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def said(self) -> str:
        return self.log.read_text()


Start = Callable[..., Started]
