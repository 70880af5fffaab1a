"""Runs of an arm, summed up beside those of plain decoding."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from db.acceptance import acceptance_length, acceptance_rate
from db.bootstrap import interval
from worker.bench.arms import Arm
from worker.bench.running import Run


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Medians over rounds. Speed-ups are ratios within a round, of what the machine did to both alike."""

    arm: str
    method: str
    gamma: int | None
    tokens_per_second: float
    speedup: float  # over plain decoding
    speedup_low: float  # bootstrap interval of 95%
    speedup_high: float
    acceptance_length: float | None
    acceptance_rate: float | None
    identical: float  # share of outputs that are plain decoding's, token for token
    first_divergence: float | None  # mean position of the first token that differs, where one does
    first_token_seconds: float  # median
    peak_memory: int  # bytes
    rounds: list[float]  # tokens per second


@dataclass(frozen=True, slots=True)
class Level:
    """All arms at so many rows in flight."""

    rows_in_flight: int
    prompts: int
    arms: list[ArmResult]


def summarize(arm: Arm, runs: Sequence[Run], plain: Sequence[Run]) -> ArmResult:
    """`runs` and `plain` are of the same rounds, over the same prompts."""
    speeds = [run.tokens_per_second for run in runs]
    ratios = [speed / base.tokens_per_second for speed, base in zip(speeds, plain, strict=True)]
    low, high = interval(ratios)
    generations = [generation for run in runs for generation in run.generations]
    accepted = sum(generation.num_accepted_draft_tokens for generation in generations)
    drafted = sum(generation.num_draft_tokens for generation in generations)
    differences = [
        first_difference(own.token_ids, expected.token_ids)
        for run, base in zip(runs, plain, strict=True)
        for own, expected in zip(run.generations, base.generations, strict=True)
    ]
    divergences = [place for place in differences if place is not None]
    return ArmResult(
        arm=arm.name,
        method=arm.method,
        gamma=arm.gamma,
        tokens_per_second=statistics.median(speeds),
        speedup=statistics.median(ratios),
        speedup_low=low,
        speedup_high=high,
        acceptance_length=acceptance_length(accepted, sum(g.num_spec_steps for g in generations)),
        acceptance_rate=acceptance_rate(accepted, drafted),
        identical=1 - len(divergences) / len(differences),
        first_divergence=statistics.mean(divergences) if divergences else None,
        first_token_seconds=statistics.median(run.first_token_seconds for run in runs),
        peak_memory=max(run.peak_memory for run in runs),
        rounds=speeds,
    )


def first_difference(own: Sequence[int], expected: Sequence[int]) -> int | None:
    """The position of the first token that differs, or that only one of them has; None if they are equal."""
    if own == expected:
        return None
    pairs = zip(own, expected, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
