"""Log lines: one an event, and an outage is an event, not each try to end it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker import logs

CELERY = logging.getLogger("celery.worker.consumer.consumer")


@contextmanager
def configured() -> Iterator[None]:
    """In a process of its own, so to speak: without pytest's handlers."""
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    logs.configure("worker cpu")
    yield
    root.handlers = kept


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("Z ")[2] or line for line in capsys.readouterr().err.splitlines()]


def test_a_broker_that_is_away_is_said_once_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    with configured():
        CELERY.error("consumer: Cannot connect to %s: %s.\n%s\n", "redis://x", "refused", "Trying again")
        for _ in range(3):
            CELERY.error("consumer: Cannot connect to redis://x: refused.")
        for _ in range(2):
            CELERY.warning("consumer: Connection to broker lost. Trying to re-establish the connection...")
            CELERY.error("consumer: Cannot connect to redis://x: refused.")
    lost = "WARNING worker cpu: consumer: Connection to broker lost. Trying to re-establish the connection..."
    assert lines(capsys) == [
        "ERROR worker cpu: consumer: Cannot connect to redis://x: refused. Trying again",
        lost,
        lost,
    ]


def test_what_a_server_away_raises_is_one_line_and_a_bug_keeps_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for error in (ConnectionRefusedError("refused"), ValueError("a bug")):
        with configured():
            logging.getLogger("specmill.worker").error("it failed", exc_info=error)
    first, *rest = lines(capsys)
    assert first == "ERROR worker cpu: it failed: refused"
    assert rest[-1] == "ValueError: a bug"
