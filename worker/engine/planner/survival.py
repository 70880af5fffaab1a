"""How likely each proposed token is to be accepted, for drafters that do not say so themselves."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from worker.engine.drafters.protocol import Draft
from worker.engine.planner.search import Floats, Integers

LONGEST_MATCH = 16  # matches from here on are one class
_SOURCES = 4
_PRIOR, _PRIOR_WEIGHT = 0.7, 2.0  # of a drafter never seen: it is worth a try
_PARENT_WEIGHT = 4.0  # trials that a cell's parent counts for in it
_PAIR_FORGETS = 0.995  # per trial in a cell
_LEARNT_AT_ONCE = 16  # outcomes: learning takes as long for one
_ROW_WEIGHT = 6.0  # trials that the pair's rate counts for in a row's
_ROW_FORGETS = 0.93  # per trial: a row that begins to copy is soon believed


class Stream(Protocol):
    """What the planner sees of a row: its tokens, prompt and output."""

    @property
    def tokens(self) -> list[int]: ...

    def __hash__(self) -> int: ...


class Survival(Protocol):
    """P(a proposed token is accepted), from running rates or from a drafter's own confidence."""

    def estimate(self, rows: Sequence[Stream], drafts: Sequence[Draft]) -> Floats:
        """[R, gamma]: that the first j tokens are accepted, falling along j; 0 where nothing is proposed."""
        ...

    def typical(self) -> Floats:
        """[gamma]: the same of a proposal like those of late, whatever the row."""
        ...

    def expected(self, row: Stream, draft: Draft) -> float:
        """How many tokens of this proposal will be accepted."""
        ...

    def watch(self, row: Stream, draft: Draft) -> None:
        """Learn from what becomes of this proposal, verified or not: the row's tokens will tell."""
        ...

    def settle(self, rows: Sequence[Stream]) -> None:
        """The rows' tokens have grown."""
        ...

    def forget(self, row: Stream) -> None:
        """The row has ended."""
        ...


class _Watched:
    """A proposal whose tokens are still to come."""

    __slots__ = ("cells", "draft", "start", "true")

    def __init__(self, draft: Draft, start: int, cells: int) -> None:
        self.draft = draft
        self.start = start  # where in the row's tokens it belongs
        self.cells = cells  # the cell of its first position
        self.true = 0  # so many of its tokens came


class RunningRates:
    """Acceptance of the pair by source, match length and position, and each row's difference from it.

    A cell leans on all positions of its match length, those on the source's overall rate, that on a prior:
    each like a Beta prior of a few trials. A row's rate is the pair's, moved by what the row's own trials had
    more or less than the pair's rates promised.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._sources: dict[str, int] = {}
        shape = (_SOURCES, LONGEST_MATCH + 1, gamma)
        self._trials, self._hits = np.zeros(shape), np.zeros(shape)
        self._rates = self._blend()
        self._cells: list[int] = []  # whose outcomes the rates have not learnt yet
        self._outcomes: list[bool] = []
        self._watched: dict[Stream, dict[int, _Watched]] = defaultdict(dict)
        self._row_trials: dict[Stream, float] = {}
        self._row_surplus: dict[Stream, float] = {}

    def estimate(self, rows: Sequence[Stream], drafts: Sequence[Draft]) -> Floats:
        survival = np.zeros((len(rows), self._gamma))
        some = [index for index, draft in enumerate(drafts) if draft.tokens]
        if not some:
            return survival
        cells = np.array([self._first_cell(drafts[index]) for index in some])
        positions = np.arange(self._gamma)
        rates = self._rates.ravel()[cells[:, None] + positions]
        shifts = np.array([self._shift(rows[index]) for index in some])
        proposed = np.array([len(drafts[index].tokens) for index in some])
        likely = (rates + shifts[:, None]).clip(0.02, 0.995).cumprod(axis=1)
        survival[some] = np.where(positions < proposed[:, None], likely, 0.0)
        return survival

    def typical(self) -> Floats:
        hits, trials = self._hits.sum(axis=(0, 1)), self._trials.sum(axis=(0, 1))
        return ((hits + _PRIOR * _PRIOR_WEIGHT) / (trials + _PRIOR_WEIGHT)).cumprod()

    def expected(self, row: Stream, draft: Draft) -> float:
        first, shift = self._first_cell(draft), self._shift(row)
        survival, total = 1.0, 0.0
        for cell in range(first, first + min(len(draft.tokens), self._gamma)):
            survival *= min(max(float(self._rates.flat[cell]) + shift, 0.02), 0.995)
            total += survival
        return total

    def watch(self, row: Stream, draft: Draft) -> None:
        if not draft.tokens:
            return
        first = self._first_cell(draft)
        source = first // (self._gamma * (LONGEST_MATCH + 1))
        watched = self._watched[row]
        if source not in watched:
            watched[source] = _Watched(draft, len(row.tokens), first)

    def settle(self, rows: Sequence[Stream]) -> None:
        for row in rows:
            watched = self._watched.get(row)
            if watched:
                self._resolve(row, watched)
        if len(self._cells) >= _LEARNT_AT_ONCE:
            self._learn(np.array(self._cells), np.array(self._outcomes, dtype=np.float64))
            self._cells.clear()
            self._outcomes.clear()

    def forget(self, row: Stream) -> None:
        self.settle([row])
        self._watched.pop(row, None)
        self._row_trials.pop(row, None)
        self._row_surplus.pop(row, None)

    def _resolve(self, row: Stream, watched: dict[int, _Watched]) -> None:
        """Compare proposals with what came; a trial at each position up to the first that differs."""
        tokens, rates = row.tokens, self._rates.ravel()
        trials, surplus = self._row_trials.get(row, 0.0), self._row_surplus.get(row, 0.0)
        for source, one in list(watched.items()):
            proposed = one.draft.tokens[: self._gamma]
            while one.true < len(proposed) and one.start + one.true < len(tokens):
                cell = one.cells + one.true
                came = tokens[one.start + one.true] == proposed[one.true]
                self._cells.append(cell)
                self._outcomes.append(came)
                trials = trials * _ROW_FORGETS + 1
                surplus = surplus * _ROW_FORGETS + came - float(rates[cell])
                if not came:
                    break
                one.true += 1
            else:
                if one.true < len(proposed):
                    continue  # the rest is still to come
            del watched[source]
        self._row_trials[row], self._row_surplus[row] = trials, surplus

    def _learn(self, cells: Integers, outcomes: Floats) -> None:
        size = self._trials.size
        counts = np.bincount(cells, minlength=size).reshape(self._trials.shape)
        hits = np.bincount(cells, weights=outcomes, minlength=size).reshape(self._trials.shape)
        kept = _PAIR_FORGETS**counts
        self._trials = self._trials * kept + counts
        self._hits = self._hits * kept + hits
        self._rates = self._blend()

    def _blend(self) -> Floats:
        hits, trials = self._hits, self._trials
        overall = hits.sum(axis=(1, 2)) + _PRIOR * _PRIOR_WEIGHT
        rate = (overall / (trials.sum(axis=(1, 2)) + _PRIOR_WEIGHT))[:, None]
        rate = (hits.sum(axis=2) + rate * _PARENT_WEIGHT) / (trials.sum(axis=2) + _PARENT_WEIGHT)
        return (hits + rate[:, :, None] * _PARENT_WEIGHT) / (trials + _PARENT_WEIGHT)

    def _shift(self, row: Stream) -> float:
        trials = self._row_trials.get(row, 0.0)
        return self._row_surplus[row] / (trials + _ROW_WEIGHT) if trials else 0.0

    def _first_cell(self, draft: Draft) -> int:
        source = self._sources.setdefault(draft.source, len(self._sources) % _SOURCES)
        return (source * (LONGEST_MATCH + 1) + min(draft.match, LONGEST_MATCH)) * self._gamma
