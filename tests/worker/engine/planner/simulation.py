"""A world without a model: rows whose future is known, a drafter that is right so often, steps at a price."""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from worker.engine.drafters import Draft
from worker.engine.planner import Planner

GAMMA = 5


@dataclass(frozen=True)
class Kind:
    """How a row's drafts turn out: whether there is one, how long its match is, how long it stays true."""

    hit: float = 1.0  # of the steps have a proposal
    acceptance: tuple[float, ...] = (
        0.7,
    )  # of each next token, by class of match; classes are equally common


@dataclass(frozen=True)
class Costs:
    """Seconds of a step and of drafting."""

    step: Callable[[int, int], float]  # rows, verified tokens
    draft: Callable[[int, int], float] = lambda rows, _: 20e-6 * rows  # rows, depth


@dataclass(eq=False)
class SimulatedRow:
    seed: int
    kind: Kind
    length: int
    tokens: list[int] = field(default_factory=list[int])

    def draft(self, limit: int) -> Draft:
        """The same at the same place, whatever was planned before."""
        chance = random.Random(self.seed * 100_003 + len(self.tokens))
        if chance.random() >= self.kind.hit:
            return Draft(())
        match = chance.randrange(len(self.kind.acceptance))
        true = 0
        while true < limit and chance.random() < self.kind.acceptance[match]:
            true += 1
        start = len(self.tokens)
        return Draft([start + i if i < true else -1 for i in range(limit)], match=match)


def run(
    planner: Planner, rows: Iterable[SimulatedRow], in_flight: int, costs: Costs, noise: float = 0.0
) -> float:
    """Seconds until the last row has ended; a row that ends makes room for the next."""
    clock = random.Random(5)
    seconds = 0.0
    waiting = deque(rows)
    active = [waiting.popleft() for _ in range(min(in_flight, len(waiting)))]
    while active:
        remaining = None if waiting else [row.length - len(row.tokens) for row in active]
        limits = planner.draft_limits(active, True, remaining) or [0] * len(active)  # plain
        asked = sum(limit > 0 for limit in limits)
        drafting = costs.draft(asked, max(limits)) if asked else 0.0
        drafts = [row.draft(limit) if limit else Draft(()) for row, limit in zip(active, limits, strict=True)]
        lengths = planner.verify_lengths(active, drafts, drafting)
        step = costs.step(len(active), len(active) + sum(lengths)) * (1 + noise * (clock.random() - 0.5))
        for row, draft, length in zip(active, drafts, lengths, strict=True):
            place = len(row.tokens)
            accepted = next((i for i in range(length) if draft.tokens[i] != place + i), length)
            row.tokens.extend(range(place, min(place + accepted + 1, row.length)))
        planner.observe(len(active), step)
        seconds += drafting + step
        for row in [row for row in active if len(row.tokens) >= row.length]:
            planner.forget(row)
            active.remove(row)
            if waiting:
                active.append(waiting.popleft())
    return seconds
