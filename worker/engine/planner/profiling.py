"""The staircase at the start: passes of several shapes over the real model, timed."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

ROWS = (1, 4, 16)
ROWS_OF_GPU = (*ROWS, 64, 256)
_REPEATS = 3
Timing = tuple[int, int, float]


def profile(
    run_pass: Callable[[int, int], None], shapes: Sequence[tuple[int, int]], budget_seconds: float = 1.2
) -> list[Timing]:
    """(rows, verified, seconds): the median of a few passes each, fewer where the budget ends before.

    `run_pass(rows, verified)` runs a pass of so many rows and tokens.
    """
    seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    run_pass(*shapes[-1])  # what the first pass sets up is not a step's
    began = perf_counter()
    for _ in range(_REPEATS):
        for shape in shapes:
            if perf_counter() - began > budget_seconds:
                break
            before = perf_counter()
            run_pass(*shape)
            seconds[shape].append(perf_counter() - before)
    return [(*shape, median(timings)) for shape, timings in seconds.items() if timings]


def profiled_shapes(max_rows: int, gamma: int, rows: Sequence[int] = ROWS) -> list[tuple[int, int]]:
    """Few rows and many; plain, a proposal here and there, and proposals for all of several lengths."""
    shapes: list[tuple[int, int]] = []
    for number in sorted({min(number, max_rows) for number in rows}):
        extra = {0, number // 2, number, 2 * number, gamma // 2 * number, gamma * number}
        shapes.extend((number, number + more) for more in sorted(extra))
    return shapes
