"""The fault campaign: `make test-faults`, or `python -m tests.faults.campaign --rounds 200 --seed 1`.

Every round prints its seed; `--only SEED` plays a single round again, with the same batch and the same faults
at the same times (what meets them there is up to the machine). A breach of the invariant ends the campaign
with exit code 1, after all rounds, unless --stop is given.
"""

import argparse
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import injections, rounds, table
from tests.faults.injections import Fault
from tests.faults.journal import Bells
from tests.faults.rounds import Outcome
from tests.faults.site import Site, run_site

Make = Sequence[Callable[[Site, random.Random], Fault]]


@dataclass(frozen=True)
class Stage:
    """Rounds at one site, with the worker processes kept between them."""

    database: str
    pair: str
    share: float  # of all rounds
    at_least: int
    faults: Make
    network: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}-{'network' if self.network else self.pair}"


STAGES = (
    Stage("sqlite", "table", 0.43, 0, injections.COMMON),
    Stage("postgres", "table", 0.43, 0, injections.COMMON),
    Stage("sqlite", "tiny", 0.05, 10, injections.COMMON),
    Stage("postgres", "tiny", 0.05, 10, injections.COMMON),
    Stage("postgres", "table", 0.04, 8, (injections.silence,), network=True),
)
FEWEST = 100  # with fewer rounds than this, no stage has a least number of them


@dataclass
class Tally:
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    bells: list[Bells] = field(default_factory=list[Bells])
    seconds: float = 0.0


def play(stage: Stage, seeds: Sequence[str], stop: bool, keep: Path) -> Tally:
    tally, began = Tally(), time.monotonic()
    answers: dict[tuple[str, int], str] = {}

    def answer(text: str, index: int) -> str:
        return table.answer(text, index) if stage.pair == "table" else answers[text, index]

    with ExitStack() as stack:
        site = stack.enter_context(
            run_site(stage.database, stage.pair, through_proxy=stage.network, answer=answer)
        )
        if stage.pair != "table":
            answers |= rounds.undisturbed(site)
        for seed in seeds:
            try:
                outcome = rounds.run(site, seed, stage.faults)
            except Exception as error:
                traceback.print_exc(file=sys.stdout)
                outcome = Outcome(seed, [], 0, 0.0, breaches=[f"the round ended with {error!r}"])
            tally.outcomes.append(outcome)
            print(outcome, flush=True)
            if outcome.breaches:
                _keep(site, keep / seed)
                if stop or not outcome.faults or rounds.is_stuck(site):
                    print("the site is given up; the rest of its rounds is not played", flush=True)
                    break
        tally.bells.append(site.bells())
    tally.seconds = time.monotonic() - began
    return tally


def _keep(site: Site, where: Path) -> None:
    """What a person needs to find the cause."""
    where.mkdir(parents=True, exist_ok=True)
    shutil.copy(site.log, where)
    print(f"    log: {where / site.log.name}", flush=True)


def share_out(total: int) -> list[int]:
    if total < FEWEST:
        counts = [round(stage.share * total) for stage in STAGES]
    else:
        counts = [max(stage.at_least, round(stage.share * total)) for stage in STAGES]
    counts[0] += total - sum(counts)
    return counts


def summary(tallies: dict[str, Tally]) -> str:
    outcomes = [outcome for tally in tallies.values() for outcome in tally.outcomes]
    bells = [bells for tally in tallies.values() for bells in tally.bells]
    faults = Counter(name for outcome in outcomes for name in outcome.faults)
    statuses = sum((outcome.found.statuses for outcome in outcomes), Counter[str]())
    lines = ["", "rounds"]
    for name, tally in tallies.items():
        lines.append(_row(f"  {name}", f"{len(tally.outcomes):,} in {tally.seconds:,.0f} s"))
    lines += [_row("  together", f"{len(outcomes):,} in {sum(t.seconds for t in tallies.values()):,.0f} s")]
    lines += ["faults", *(_row(f"  {name}", count) for name, count in sorted(faults.items()))]
    lines += ["prompts", *(_row(f"  {name}", count) for name, count in sorted(statuses.items()))]
    lines += [
        _row("  leases that ended with their process", sum(o.found.crashed for o in outcomes)),
        _row("  given back, or taken, and run again", sum(o.found.released for o in outcomes)),
        _row("  innocent and failed as poison", sum(o.found.bystanders for o in outcomes)),
        _row("samples", sum(o.found.samples for o in outcomes)),
        _row("bells", sum(b.published for b in bells)),
        _row("  heard again", sum(b.repeated for b in bells)),
        _row("  never heard", sum(b.lost for b in bells)),
        _row("results lost", sum(o.found.lost for o in outcomes)),
        _row("results doubled", sum(o.found.doubled for o in outcomes)),
        _row("rounds that broke the invariant", sum(bool(o.breaches) for o in outcomes)),
    ]
    return "\n".join(lines)


def _row(name: str, value: object) -> str:
    return f"{name:45} {value:>14}" if isinstance(value, str) else f"{name:45} {value:>14,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--stage", choices=[stage.name for stage in STAGES], help="only this one")
    parser.add_argument("--only", help="a round's seed as printed")
    parser.add_argument("--stop", action="store_true", help="stop a stage at its first breach")
    parser.add_argument("--keep", type=Path, default=Path(".faults"), help="where logs of failed rounds go")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # the site is taken down in any event
        signal.signal(number, lambda *_: sys.exit(1))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, {options.rounds} rounds", flush=True)
    stages = [stage for stage in STAGES if options.stage in (None, stage.name)]
    counts = share_out(options.rounds) if options.stage is None else [options.rounds]
    tallies: dict[str, Tally] = {}
    for stage, count in zip(stages, counts, strict=True):
        seeds = [f"{stage.name}-{seed}-{number}" for number in range(count)]
        if options.only is not None:
            seeds = [options.only] if options.only.startswith(stage.name) else []
        if seeds:
            print(f"{stage.name}: {len(seeds)} rounds", flush=True)
            tallies[stage.name] = play(stage, seeds, options.stop, options.keep)
    print(summary(tallies))
    sys.exit(any(outcome.breaches for tally in tallies.values() for outcome in tally.outcomes))


if __name__ == "__main__":
    main()
