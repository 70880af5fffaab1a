"""`make soak` (MINUTES=30): work without end and a kill every 10 to 30 seconds; does anything grow?

Sampled every few seconds, after the first minutes have warmed everything up: memory, connections and open
files of the processes that live through it all (broker, database, supervisor) and of the workers, which are
young again after each kill, together with what the database holds of its clients and the broker of bells.
"""

import argparse
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import psutil

from tests.faults import injections, invariant, rounds, table
from tests.faults.invariant import Expected
from tests.faults.site import Site, run_site

EVERY = 5.0  # seconds between samples
BATCH = 1_500  # prompts: some ten seconds of work, so that a batch is always running
FAULTS: Sequence[Callable[[Site, random.Random], injections.Fault]] = (
    injections.kill_worker,
    injections.kill_worker,
    injections.terminate_worker,
    injections.freeze_worker,
    injections.kill_broker,
    injections.take_database_away,
)

Series = dict[str, list[float]]


def sample(site: Site, series: Series) -> None:
    """Servers that are down at the moment are left out."""
    named: list[tuple[str, list[psutil.Process]]] = []
    assert site.fleet is not None
    named.append(("supervisor", [psutil.Process(site.fleet.pid)]))
    named.append(("workers", site.workers()))
    if site.broker.is_up:
        named.append(("broker", [psutil.Process(site.broker.pid)]))
    if site.postgres is not None and site.postgres.is_up:
        server = psutil.Process(site.postgres.pid)
        named.append(("postgres", [server]))
        series["postgres: clients"].append(
            sum(
                "specmill" in " ".join(child.cmdline()) or "[local]" in " ".join(child.cmdline())
                for child in server.children()
            )
        )
    for name, processes in named:
        sizes = [_size(process) for process in processes]
        for what, values in zip(
            ("MiB", "files", "threads"), zip(*filter(None, sizes), strict=True), strict=False
        ):
            series[f"{name}: {what}"].append(max(values))
    if site.broker.is_up:
        info = site.broker.client.info()
        series["broker: clients"].append(info["connected_clients"])
        series["broker: unacknowledged"].append(
            sum(
                site.broker.client.hlen(key) for key in site.broker.client.scan_iter("*unacked", _type="hash")
            )
        )
        series["broker: bells"].append(site.broker.bells())


def _size(process: psutil.Process) -> tuple[float, float, float] | None:
    try:
        with process.oneshot():
            return process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    except psutil.Error:
        return None


def soak(site: Site, minutes: float, seed: int) -> tuple[Series, int, int, list[str]]:
    rng = random.Random(seed)
    series: Series = defaultdict(list)
    end = time.monotonic() + 60 * minutes
    acts: list[tuple[float, Callable[[], None]]] = []
    next_fault = next_sample = time.monotonic()
    batches = faults = 0
    breaches: list[str] = []
    batch_id: str | None = None
    while time.monotonic() < end or batch_id is not None:
        now = time.monotonic()
        if batch_id is None:
            prompts = [rounds.prompt(f"p{i}", f"batch {batches}, prompt {i}") for i in range(BATCH)]
            batch_id = site.submit(prompts)
            site.ring(8)
            batches += 1
        if now >= next_fault and not acts and now < end:
            fault = rng.choice(FAULTS)(site, rng)
            acts = [(now, fault.begin), (now + rng.uniform(*fault.lasts), fault.end)]
            next_fault = now + rng.uniform(10, 30)
            faults += 1
        while acts and now >= acts[0][0]:
            acts.pop(0)[1]()
        if now >= next_sample and not acts:
            next_sample = now + EVERY
            sample(site, series)
        if not acts and not site.is_open(batch_id):
            # Over thousands of deaths some innocent meets three; that such a prompt may fail is known.
            _, found = invariant.check(site.db, batch_id, Expected(table.answer, deaths=3))
            breaches += [f"batch {batches - 1}: {breach}" for breach in found]
            batch_id = None
        assert now < end + 300, "the last batch does not end"
        time.sleep(0.1)
    return series, batches, faults, breaches


def show(series: Series) -> None:
    """The first and the last third of the samples: growth shows between them."""
    print(f"{'':28} {'first third':>12} {'last third':>12} {'growth':>9}")
    for name, values in sorted(series.items()):
        third = max(1, len(values) // 3)
        first, last = median(values[:third]), median(values[-third:])
        growth = f"{100 * (last - first) / first:+.0f} %" if first else f"{last - first:+.0f}"
        print(f"{name:28} {first:12,.1f} {last:12,.1f} {growth:>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="postgres")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # the site is taken down in any event
        signal.signal(number, lambda *_: sys.exit(1))
    with run_site(options.database, answer=table.answer) as site:
        series, batches, faults, breaches = soak(site, options.minutes, options.seed)
        print(
            f"{options.minutes:g} minutes on {options.database}, seed {options.seed}: "
            f"{batches} batches of {BATCH:,}, {faults} faults"
        )
        show(series)
    print("\n".join(breaches) or "every batch ended, and kept the invariant")
    sys.exit(bool(breaches))


if __name__ == "__main__":
    main()
