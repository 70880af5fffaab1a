"""A block of plain steps beside the speculative steps before and after it."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of all rows gave, and who was in it."""

    groups: frozenset[Hashable]  # of the requests in flight
    rows_in_flight: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Arm:
    """Steps of one kind together."""

    steps: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A block and its neighbours at equal rows in flight, with requests of the same groups."""

    block: int  # of the engine, from 1; a block has a comparison for each number of rows that was in it
    groups: frozenset[Hashable]
    rows_in_flight: int
    plain: Arm
    speculative: Arm


class Comparer:
    """Told of each step; a comparison is made when as many steps followed a block as it has, or none will."""

    def __init__(self, block: int) -> None:
        self._block = block
        # After a switch: a draft model reads what was generated without it, costs settle.
        self._settling_steps = block // 20
        self._least_steps = block // 10  # of a kind, for a number of rows to be compared
        self._settling = 0
        self._in_plain = False
        self._before: deque[Step] = deque(maxlen=block)
        self._plain: list[Step] = []
        self._after: list[Step] = []
        self._blocks = 0

    def note(self, step: Step, *, plain: bool) -> list[Comparison]:
        made: list[Comparison] = []
        if plain != self._in_plain:
            if plain:
                made = self.conclude()
            self._in_plain, self._settling = plain, self._settling_steps
        if self._settling:
            self._settling -= 1
        elif plain:
            self._plain.append(step)
        elif self._plain:
            self._after.append(step)
            if len(self._after) == self._block:
                made = self.conclude()
        else:
            self._before.append(step)
        return made

    def conclude(self) -> list[Comparison]:
        """What can be said by now of the last block; it is over with that."""
        plain = _sums(self._plain)
        speculative = _sums([*self._before, *self._after])
        if self._after:
            self._before = deque(self._after, maxlen=self._block)
        self._plain, self._after = [], []
        return self._compare(plain, speculative)

    def _compare(self, plain: "Mapping[_Kind, Arm]", speculative: "Mapping[_Kind, Arm]") -> list[Comparison]:
        comparable = [kind for kind in plain if self._enough(plain[kind]) and kind in speculative]
        comparable = [kind for kind in comparable if self._enough(speculative[kind])]
        self._blocks += bool(comparable)
        return [
            Comparison(self._blocks, groups, rows, plain[groups, rows], speculative[groups, rows])
            for groups, rows in comparable
        ]

    def _enough(self, arm: Arm) -> bool:
        return arm.steps >= self._least_steps and arm.tokens > 0


_Kind = tuple[frozenset[Hashable], int]


def _sums(steps: Iterable[Step]) -> Mapping[_Kind, Arm]:
    sums: defaultdict[_Kind, Arm] = defaultdict(lambda: Arm(0, 0, 0.0))
    for step in steps:
        kind = step.groups, step.rows_in_flight
        known = sums[kind]
        sums[kind] = Arm(known.steps + 1, known.tokens + step.tokens, known.seconds + step.seconds)
    return dict(sums)
