"""The one Celery task: a bell rang, so let the runner claim, and wait until that claim has ended."""

import logging

from celery import Celery

from worker.runner import Runner
from worker.wire.app import BELL_TASK

log = logging.getLogger("specmill.worker")


def register_bell(app: Celery, runner: Runner) -> None:
    def bell(pair: str) -> None:  # noqa: ARG001 (the message names a pair; the queue it came by is already that pair's)
        try:
            runner.hear().wait()
        except (
            BaseException
        ):  # let out, MemoryError and SystemExit leak the message and in time freeze the worker
            log.exception("a bell went unheard")

    app.task(bell, name=BELL_TASK)
