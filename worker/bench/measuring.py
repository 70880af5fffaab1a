"""Rounds: each arm once, one after the other, so that what the machine does besides falls on all of them."""

from collections.abc import Callable, Sequence

from worker.bench.arms import PLAIN, Arm
from worker.bench.results import Level, summarize
from worker.bench.running import Run, run
from worker.engine import Engine, Request

LEAST_PROMPTS = 8  # where fewer rows are in flight, prompts follow each other

Say = Callable[[str], None]


def measure(
    engine: Engine, arms: Sequence[Arm], requests: Sequence[Request], rows: int, rounds: int, say: Say
) -> Level:
    """The arms at so many rows in flight, after a round that warms up and does not count."""
    requests = requests[: max(rows, LEAST_PROMPTS)]
    runs: dict[str, list[Run]] = {arm.name: [] for arm in arms}
    for number in range(rounds + 1):
        say(f"{rows} in flight: " + (f"round {number} of {rounds}" if number else "warming up"))
        for arm in arms:
            engine.exchange(arm.drafter(), arm.planner)
            done = run(engine, requests, rows)
            if number:
                runs[arm.name].append(done)
    results = [summarize(arm, runs[arm.name], runs[PLAIN]) for arm in arms]
    return Level(rows, len(requests), results)
