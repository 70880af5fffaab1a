"""The results as a picture."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from worker.bench.results import ArmResult, Level
from worker.errors import ConfigurationError

_COLOURS = {
    "none": "black",
    "prompt_lookup": "tab:blue",
    "suffix": "tab:green",
    "draft_model": "tab:orange",
    "dspark": "tab:red",
}


def check_plot(file: Path) -> None:
    """Before anything is measured: that it can be drawn, and where."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("--plot needs matplotlib: pip install 'specmill[bench]'")
    if file.suffix != ".png" or not file.parent.is_dir():
        raise ConfigurationError(
            f"--plot {file}: expected a file name that ends in .png, in a folder that exists."
        )


def plot(title: str, levels: Sequence[Level], file: Path) -> None:
    """Speed-up and speed over rows in flight: a line for each arm, the planned one bold."""
    from matplotlib.figure import Figure  # half a second that only --plot pays

    figure = cast(Any, Figure(figsize=(13, 5), layout="constrained"))
    figure.suptitle(title)
    speedups, speeds = figure.subplots(1, 2)
    rows = [level.rows_in_flight for level in levels]
    for results in zip(*(level.arms for level in levels), strict=True):
        style = _style(results[0])
        middles = [result.speedup for result in results]
        below = [result.speedup - result.speedup_low for result in results]
        above = [result.speedup_high - result.speedup for result in results]
        speedups.errorbar(rows, middles, yerr=[below, above], capsize=2, **style)
        speeds.plot(rows, [result.tokens_per_second for result in results], **style)
    speedups.set_ylabel("speed-up over plain decoding, with 95% intervals")
    speeds.set_ylabel("tokens per second")
    speeds.set_yscale("log")
    for axes in (speedups, speeds):
        axes.set_xscale("log", base=2)
        axes.set_xticks(rows, [str(number) for number in rows])
        axes.set_xlabel("rows in flight")
        axes.grid(alpha=0.3)
    figure.legend(*speeds.get_legend_handles_labels(), loc="outside right center")
    figure.savefig(file, dpi=120)


def _style(result: ArmResult) -> dict[str, Any]:
    """A colour for each method; the longer the proposals, the lighter."""
    style: dict[str, Any] = {"label": result.arm, "color": _COLOURS[result.method]}
    if result.gamma is None:
        return style | {"linewidth": 3, "marker": "o"}
    return style | {"linewidth": 1, "marker": ".", "alpha": max(0.3, 1 - result.gamma / 12)}
