"""The results as a table."""

from collections.abc import Iterator, Sequence

from worker.bench.arms import PLAIN
from worker.bench.results import ArmResult, Level

_HEADER = (
    "",
    "tok/s",
    "speed-up",
    "95%",
    "helps",
    "accepted length",
    "rate",
    "identical",
    "differs at",
    "first token",
    "memory",
)


def as_text(levels: Sequence[Level]) -> str:
    return "\n\n".join("\n".join(_level(level)) for level in levels)


def _level(level: Level) -> Iterator[str]:
    yield f"{level.rows_in_flight} in flight, {level.prompts} prompts"
    table = [_HEADER, *(_cells(result) for result in level.arms)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADER))]
    for name, *cells in table:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join(("  " + name.ljust(widths[0]), *numbers))


def _cells(result: ArmResult) -> tuple[str, ...]:
    return (
        result.arm,
        f"{result.tokens_per_second:,.1f}",
        f"{result.speedup:.2f}x",
        f"{result.speedup_low:.2f}-{result.speedup_high:.2f}",
        _helps(result),
        "-" if result.acceptance_length is None else f"{result.acceptance_length:.2f}",
        "-" if result.acceptance_rate is None else f"{result.acceptance_rate:.1%}",
        f"{result.identical:.0%}",
        "-" if result.first_divergence is None else f"token {result.first_divergence:.0f}",
        f"{result.first_token_seconds * 1000:,.0f} ms",
        f"{result.peak_memory / 2**20:,.0f} MiB",
    )


def _helps(result: ArmResult) -> str:
    """By the interval, not by its middle."""
    if result.arm == PLAIN:
        return "-"
    if result.speedup_low > 1:
        return "yes"
    return "no" if result.speedup_high < 1 else "even"
