"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds; a limit for a broken test, not a measurement


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.02)
