"""The staircase at the start: passes of several shapes over the real model, timed."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

_ROWS = (1, 4, 16)
_REPEATS = 3
Timing = tuple[int, int, float]


def profile(
    run_pass: Callable[[int, int], None], max_rows: int, gamma: int, budget_seconds: float = 1.2
) -> list[Timing]:
    """(rows, verified, seconds): the median of a few passes each, fewer where the budget ends before.

    `run_pass(rows, verified)` runs a pass of so many rows and tokens.
    """
    shapes = profiled_shapes(max_rows, gamma)
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


def profiled_shapes(max_rows: int, gamma: int) -> list[tuple[int, int]]:
    """Few rows and many; plain, a proposal here and there, and proposals for all of several lengths."""
    shapes: list[tuple[int, int]] = []
    for rows in sorted({min(rows, max_rows) for rows in _ROWS}):
        extra = {0, rows // 2, rows, 2 * rows, gamma // 2 * rows, gamma * rows}
        shapes.extend((rows, rows + more) for more in sorted(extra))
    return shapes
