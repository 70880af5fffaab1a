"""One submission on the embedded stack: attach, ring, wait, leave."""

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import click
from sqlalchemy import Engine

from db.reports import Progress
from db.settings import DatabaseSettings
from producer.console import say
from producer.exits import Exit
from producer.local import LocalStack
from producer.ringing import ring_for
from producer.submit import Submission
from producer.waiting import wait


def run_locally(
    engine: Engine, settings: DatabaseSettings, submission: Submission, batch_id: str, waits: bool
) -> Progress | None:
    """Run a batch here; without waiting, a process in the background keeps the stack until its end."""
    stack = LocalStack(settings.state_dir.absolute())
    pair = submission.pair
    with stopping_on_sigterm():
        try:
            stack.attach(pair.name, pair.fingerprint, settings.url())
            ring_for(engine, stack.broker_url, pair.name, submission.priority)
            if not waits:
                _hand_over(stack, settings, submission, batch_id)
                return None
            return wait(engine, batch_id, pair.name, stack.check)
        except KeyboardInterrupt:
            say("stopping: the worker finishes or gives back what it runs (Ctrl-C again: at once)")
            stopped = stack.detach()
            how = "submit again to continue it" if stopped else "another submit's worker goes on with it"
            say(f"batch {batch_id} keeps what is done; {how}")
            raise click.exceptions.Exit(Exit.INTERRUPTED) from None
        finally:
            stack.detach()


def _hand_over(stack: LocalStack, settings: DatabaseSettings, submission: Submission, batch_id: str) -> None:
    """The keeper inherits our part in the stack: at no moment is the stack without a user."""
    log = settings.state_dir / "keeper.log"
    users = stack.users
    pair = submission.pair
    command = [sys.executable, "-m", "producer.keeper", batch_id, pair.name, pair.fingerprint, str(users)]
    with log.open("ab") as output:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(users,),
        )
    stack.forget()
    say(f"the local worker runs in the background until the batch has ended: producer watch {batch_id}")


@contextmanager
def stopping_on_sigterm() -> Generator[None]:
    """SIGTERM is taken as Ctrl-C: the worker is drained whoever ends us."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
