"""A round: a random batch, one to three faults at random times, the batch's end, the invariant."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import Connection, select

from db import actions
from db.batches import NewPrompt
from db.connect import reading, writing
from db.errors import ActionRefused, DatabaseUnreachable
from db.tables import OPEN_BATCH, Batch, Prompt, Sample
from tests.faults import invariant, table, triggers
from tests.faults.injections import Fault
from tests.faults.invariant import Expected, Found
from tests.faults.site import Site, until

FAULT_SECONDS = 2.5  # faults begin within this time of the submission
END_SECONDS = 60.0  # for a batch to end once the last fault is over
DRAIN_SECONDS = 20.0
REAL_TEXTS = 40
MOST_SAMPLES = 3


@dataclass
class Outcome:
    """What a round did and found."""

    seed: str
    faults: list[str]
    prompts: int
    seconds: float
    found: Found = field(default_factory=Found)
    breaches: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {status}" for status, count in sorted(self.found.statuses.items()))
        line = f"{self.seed}: {self.seconds:5.1f} s, {ends}; {' + '.join(self.faults)}"
        return "\n    ".join([line, *self.breaches[:20]])


def run(site: Site, seed: str, make: Sequence[Callable[[Site, random.Random], Fault]]) -> Outcome:
    """Everything random is drawn from the seed, before anything happens."""
    rng = random.Random(seed)
    began = time.monotonic()
    prompts = draw_prompts(site, rng, seed)
    poisonous = [prompt.custom_id for prompt in prompts if table.POISON in (prompt.text or "")]
    faults = [rng.choice(make)(site, rng) for _ in range(rng.randint(1, 3))]
    cancels = rng.random() < 0.08
    pauses = not cancels and rng.random() < 0.08
    window = timedelta(seconds=rng.uniform(1, 4)) if rng.random() < 0.05 else None
    names = [fault.name for fault in faults] + ["poison prompt"] * len(poisonous)
    batch_id = site.submit(prompts, rng.randint(0, 2), window)
    moments = schedule(faults, rng)
    people = People()
    at = rng.uniform(0, FAULT_SECONDS)
    if cancels:
        moments.append((at, lambda: people.ask(site, actions.cancel, batch_id)))
        names.append("cancel")
    if pauses:
        moments.append((at, lambda: people.ask(site, actions.pause, batch_id)))
        moments.append((at + 1.5, lambda: people.ask(site, actions.resume, batch_id)))
        names.append("pause, resume")
    names += ["deadline"] * (window is not None)
    site.ring(rng.randint(1, 16))
    _play(moments)
    people.wait()
    triggers.forget(site.folder)
    end = time.monotonic() + END_SECONDS
    while site.is_open(batch_id) and time.monotonic() < end:
        site.keep_fleet()
        time.sleep(0.05)
    deaths = sum(fault.deaths for fault in faults) + 3 * len(poisonous)
    statuses = ["completed", *["cancelled"] * cancels, *["expired"] * (window is not None)]
    found, breaches = invariant.check(
        site.db, batch_id, Expected(site.answer, statuses, poisonous, 1, deaths)
    )
    breaches += _drained(site)
    return Outcome(seed, names, len(prompts), time.monotonic() - began, found, breaches)


def undisturbed(site: Site) -> dict[tuple[str, int], str]:
    """What the real engine answers while nothing is broken: the only right texts."""
    texts = [real_text(number) for number in range(REAL_TEXTS)]
    batch_id = site.submit([prompt(f"p{number}", text, MOST_SAMPLES) for number, text in enumerate(texts)])
    site.ring(4)
    until(lambda: not site.is_open(batch_id), "the undisturbed batch ends", 120)
    with reading(site.db) as conn:
        query = select(Prompt.text, Sample.sample_index, Sample.text).join(
            Sample, Sample.prompt_id == Prompt.id
        )
        rows = conn.execute(query.where(Prompt.batch_id == batch_id)).all()
    assert len(rows) == len(texts) * MOST_SAMPLES
    return {(text, index): answer for text, index, answer in rows}


def is_stuck(site: Site) -> bool:
    """Whether something is left that the next round would run into."""
    with reading(site.db) as conn:
        return conn.execute(select(Batch.id).where(Batch.status.in_(OPEN_BATCH)).limit(1)).first() is not None


def draw_prompts(site: Site, rng: random.Random, seed: str) -> list[NewPrompt]:
    real = site.pair != "table"
    count = rng.randint(10, 60) if real else rng.randint(20, 500)
    texts = [real_text(rng.randrange(REAL_TEXTS)) if real else f"{seed}, prompt {i}" for i in range(count)]
    if not real and rng.random() < 0.1:
        texts[rng.randrange(count)] += f", {table.POISON}"
    return [
        prompt(f"p{number}", text, rng.choice((1, 1, 1, 2, MOST_SAMPLES)))
        for number, text in enumerate(texts)
    ]


def prompt(custom_id: str, text: str, n: int = 1) -> NewPrompt:
    return NewPrompt(custom_id, None, None, None, text, None, {"seed": 7}, n, None, text)


def real_text(number: int) -> str:
    return f"Once upon a time, in the year {1000 + 37 * number}, "


def schedule(faults: Sequence[Fault], rng: random.Random) -> list[tuple[float, Callable[[], None]]]:
    """Their beginnings and ends; two of the same kind follow each other, the others may overlap."""
    moments: list[tuple[float, Callable[[], None]]] = []
    free: Counter[str] = Counter()
    for fault in faults:
        at = max(rng.uniform(0, FAULT_SECONDS), free[fault.name])
        over = at + rng.uniform(*fault.lasts)
        free[fault.name] = over + 0.1
        moments += [(at, fault.begin), (over, fault.end)]
    return moments


def _play(moments: Sequence[tuple[float, Callable[[], None]]]) -> None:
    began = time.monotonic()
    for at, act in sorted(moments, key=lambda moment: moment[0]):
        time.sleep(max(0.0, began + at - time.monotonic()))
        act()


class People:
    """People at their terminals, one after the other; they ask again where the database is away."""

    def __init__(self) -> None:
        self._one = ThreadPoolExecutor(1)
        self._asked: list[Future[None]] = []

    def ask(self, site: Site, act: Callable[[Connection, str], object], batch_id: str) -> None:
        self._asked.append(self._one.submit(_insist, site, act, batch_id))

    def wait(self) -> None:
        for asked in self._asked:
            asked.result()
        self._one.shutdown()


def _insist(site: Site, act: Callable[[Connection, str], object], batch_id: str) -> None:
    end = time.monotonic() + END_SECONDS
    while True:
        try:
            with writing(site.db) as conn:
                act(conn, batch_id)
            return
        except ActionRefused:  # it had ended before
            return
        except DatabaseUnreachable:
            assert time.monotonic() < end, "the database did not come back"
            time.sleep(0.1)


def _drained(site: Site) -> list[str]:
    """Nobody rings for what has ended, and what was rung for it is heard and forgotten."""
    end = time.monotonic() + DRAIN_SECONDS
    while bells := site.broker.bells():
        if time.monotonic() > end:
            return [f"{bells} bells are still waiting in Redis"]
        time.sleep(0.05)
    return []
