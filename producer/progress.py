"""Live progress on a terminal, a plain line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from db.fleet import WorkerRow
from db.reports import Progress
from db.tables import WorkerState
from producer.console import say

PACE_SECONDS = 30.0  # rates are over the last so many seconds
PLAIN_SECONDS = 10.0  # between lines where there is no terminal


@dataclass(slots=True)
class Pace:
    """How fast prompts end and tokens come, from what was seen lately."""

    seen: deque[tuple[float, int, int]] = field(default_factory=deque[tuple[float, int, int]])

    def see(self, progress: Progress) -> None:
        moment = time.monotonic()
        self.seen.append((moment, progress.done, progress.completion_tokens))
        while len(self.seen) > 2 and moment - self.seen[1][0] > PACE_SECONDS:
            self.seen.popleft()

    def rates(self) -> tuple[float, float]:
        """Prompts and tokens a second."""
        (start, done, tokens), (end, done_now, tokens_now) = self.seen[0], self.seen[-1]
        seconds = end - start
        return ((done_now - done) / seconds, (tokens_now - tokens) / seconds) if seconds > 0 else (0.0, 0.0)


def describe(progress: Progress, pace: Pace, workers: Sequence[WorkerRow]) -> str:
    """One line: how much is done, how fast, and how long it will take."""
    parts = [f"{progress.done:,}/{progress.total:,} prompts"]
    if failed := progress.prompts["failed"]:
        parts.append(f"{failed:,} failed")
    prompts_per_second, tokens_per_second = pace.rates()
    if tokens_per_second:
        parts.append(f"{tokens_per_second:,.0f} tokens/s")
    if progress.acceptance_length is not None:
        parts.append(f"acceptance length {progress.acceptance_length:.2f}")
    if not progress.ended:
        if progress.paused:
            parts.append("paused")
        elif not workers:
            parts.append("waiting for a worker")
        elif all(worker.state == WorkerState.STARTING for worker in workers):
            parts.append("the worker is loading its model")
        elif prompts_per_second:
            left = (progress.total - progress.done) / prompts_per_second
            parts.append(f"about {clock(left)} left")
    return " · ".join(parts)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


Show = Callable[[str, int, int], None]


@contextmanager
def display() -> Generator[Show]:
    """Gives a function that shows a line, prompts done and their total."""
    from rich.console import Console  # a tenth of a second that only waiting commands pay

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain()
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(), TextColumn("{task.description}", markup=False), console=console) as bar:
        task = bar.add_task("", total=None)

        def show(line: str, done: int, total: int) -> None:
            bar.update(task, description=line, completed=done, total=total or None)

        yield show


def _plain() -> Show:
    last: tuple[float, str] = (float("-inf"), "")

    def show(line: str, done: int, total: int) -> None:
        nonlocal last
        moment = time.monotonic()
        if line != last[1] and (moment - last[0] >= PLAIN_SECONDS or done == total):
            last = (moment, line)
            say(line)

    return show
