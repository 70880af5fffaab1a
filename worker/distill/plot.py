"""The training as a picture."""

from pathlib import Path
from typing import Any, cast

from worker.distill.evaluating import Evaluation
from worker.distill.training import Progress


def plot(title: str, progress: Progress, evaluation: Evaluation, file: Path) -> None:
    """Tau over the run, and how often each position is accepted."""
    from matplotlib.figure import Figure  # half a second that only a plot pays

    figure = cast(Any, Figure(figsize=(12, 4.5), layout="constrained"))
    figure.suptitle(title)
    run, positions = figure.subplots(1, 2)
    run.plot([anchors for anchors, _ in progress.taus], [tau for _, tau in progress.taus], marker=".")
    run.set_xlabel("anchors trained on")
    run.set_ylabel("tokens a step, on held-out responses")
    for name in ("drafter", "mixed", "lookup", "bigram"):
        tallies = getattr(evaluation, name)
        tally = tallies[max(tallies)]
        places = list(range(1, len(tally.rates) + 1))
        positions.plot(places, tally.rates, marker="o", label=f"{name}, {tally.tau:.2f} tokens a step")
    positions.set_xlabel("position in the block")
    positions.set_ylabel("accepted, if those before it were")
    positions.set_ylim(0, 1)
    positions.legend()
    for axes in (run, positions):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
