"""How likely proposed tokens are to be accepted, from a drafter's own confidence, calibrated by outcomes.

Sequential temperature scaling (arXiv 2607.05147): from left to right each position gets the temperature with
which the product of confidences up to it is closest to how often so many tokens were accepted.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from worker.engine.drafters.protocol import Draft
from worker.engine.planner.search import Floats, Integers
from worker.engine.planner.survival import RunningRates, Stream

_REMEMBERED = 512  # outcomes of a source, the newest
_FIT_EVERY = 64  # outcomes
_BINS = 10
_LEAST, _MOST = 0.02, 0.995  # of a calibrated confidence: none is certain
# Those that change the least come first: of equally good ones they are taken.
_TEMPERATURES = np.array(sorted(2.0 ** np.linspace(-2, 3, 41), key=lambda t: abs(np.log(t))))


class CalibratedConfidence:
    """Of proposals without a confidence it knows what running rates tell."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._rates = RunningRates(gamma)
        self._sources: dict[str, _Calibration] = {}  # greedy and sampled rows draft as different ones
        self._watched: dict[Stream, tuple[Draft, int]] = {}  # and where in the row's tokens it belongs

    def estimate(self, rows: Sequence[Stream], drafts: Sequence[Draft]) -> Floats:
        survival = self._rates.estimate(rows, drafts)
        for index, draft in enumerate(drafts):
            if draft.confidence and draft.tokens:
                known = self._survival(draft)
                survival[index] = 0.0
                survival[index, : len(known)] = known
        return survival

    def typical(self) -> Floats:
        return self._rates.typical()

    def expected(self, row: Stream, draft: Draft) -> float:
        if draft.confidence:
            return float(self._survival(draft).sum())
        return self._rates.expected(row, draft)

    def watch(self, row: Stream, draft: Draft) -> None:
        self._rates.watch(row, draft)
        if draft.confidence and draft.tokens:
            self._watched.setdefault(row, (draft, len(row.tokens)))

    def settle(self, rows: Sequence[Stream]) -> None:
        self._rates.settle(rows)
        for row in rows:
            if row in self._watched:
                self._settle(row, is_over=False)

    def forget(self, row: Stream) -> None:
        self._rates.forget(row)
        if row in self._watched:
            self._settle(row, is_over=True)

    def _survival(self, draft: Draft) -> Floats:
        length = min(len(draft.tokens), self._gamma)
        logits = np.array(draft.confidence[:length])
        return self._calibration(draft.source).confidence(logits).cumprod()

    def _settle(self, row: Stream, *, is_over: bool) -> None:
        """Once the first token that differs has come, or all have: what became of each position is known."""
        draft, start = self._watched[row]
        proposed, came = list(draft.tokens[: self._gamma]), row.tokens[start : start + self._gamma]
        true = 0
        while true < min(len(proposed), len(came)) and proposed[true] == came[true]:
            true += 1
        if true == len(came) < len(proposed) and not is_over:
            return
        del self._watched[row]
        known = len(proposed) if true < len(came) else true
        if known:
            self._calibration(draft.source).learn(draft.confidence[:known], true)

    def _calibration(self, source: str) -> "_Calibration":
        if source not in self._sources:
            self._sources[source] = _Calibration(self._gamma)
        return self._sources[source]


class _Calibration:
    """Temperatures by position, and the outcomes that they are fitted to."""

    def __init__(self, gamma: int) -> None:
        self._temperatures = np.ones(gamma)
        self._logits = np.full((_REMEMBERED, gamma), np.nan)  # NaN where the outcome is not known
        self._accepted = np.zeros(_REMEMBERED, dtype=np.int64)  # of each proposal's tokens
        self._learnt = 0

    def confidence(self, logits: Floats) -> Floats:
        """Calibrated, of the first positions."""
        return _sigmoid(logits / self._temperatures[: len(logits)]).clip(_LEAST, _MOST)

    def learn(self, logits: Sequence[float], accepted: int) -> None:
        place = self._learnt % _REMEMBERED
        self._logits[place] = np.nan
        self._logits[place, : len(logits)] = logits
        self._accepted[place] = accepted
        self._learnt += 1
        if self._learnt % _FIT_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        number = min(self._learnt, _REMEMBERED)
        logits, accepted = self._logits[:number], self._accepted[:number]
        before = np.ones(number)
        for position in range(logits.shape[1]):
            known = ~np.isnan(logits[:, position])
            if known.sum() < _FIT_EVERY:
                return  # what follows is known of fewer
            survival = before[known, None] * _sigmoid(logits[known, position, None] / _TEMPERATURES)
            came = (accepted[known] > position).astype(np.float64)
            errors = _calibration_errors(survival, came)
            self._temperatures[position] = _TEMPERATURES[errors.argmin()]
            before = before * _sigmoid(logits[:, position] / self._temperatures[position])


def _calibration_errors(promised: Floats, came: Floats) -> Floats:
    """Of each column of [N, columns]: how far promises and outcomes are apart, bin by bin."""
    columns = promised.shape[1]
    bins = (promised * _BINS).astype(np.int64).clip(0, _BINS - 1) + np.arange(columns) * _BINS
    gaps = (promised - came[:, None]).ravel()
    sums = np.bincount(cast(Integers, bins.ravel()), weights=gaps, minlength=columns * _BINS)
    return np.abs(sums.reshape(columns, _BINS)).sum(axis=1) / len(promised)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
