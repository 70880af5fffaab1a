"""What a drafter brings by the clock, on prompts that it was not trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worker.bench.arms import make_arms
from worker.bench.measuring import LEAST_PROMPTS, measure
from worker.bench.results import ArmResult
from worker.distill.asking import Ask
from worker.engine import Engine
from worker.engine.types import FolderModel, Pair

_ROWS = (1, 8)
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the pair as its planner runs it with the drafter, beside plain decoding in the same rounds."""

    rows_in_flight: int
    plain: ArmResult
    drafted: ArmResult


def measure_speeds(
    pair: Pair, drafter: Path, gamma: int, asks: Sequence[Ask], say: Callable[[str], None]
) -> list[Speed]:
    """Greedy or as the prompts were asked; nothing else should run meanwhile."""
    drafting = replace(
        pair,
        method="dspark",
        draft=FolderModel(drafter),
        gamma=gamma,
        max_rows=max(_ROWS),
        baseline_share=0.0,
    )
    engine = Engine(drafting)
    some = asks[: max(*_ROWS, LEAST_PROMPTS)]
    requests = [ask.request(place, engine) for place, ask in enumerate(some)]
    arms = make_arms(engine, drafting, [])
    speeds: list[Speed] = []
    for rows in _ROWS:
        level = measure(engine, arms, requests, rows, _ROUNDS, say)
        speeds.append(Speed(rows, level.arms[0], level.arms[-1]))
    return speeds
