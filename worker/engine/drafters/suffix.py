"""Proposes what followed the row's newest tokens in the outputs of rows that have finished."""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.engine.drafters.corpus import MAX_MATCH, Corpus
from worker.engine.drafters.protocol import Draft, Proposal
from worker.engine.rows import Row

_PROMPT_TAIL = 4  # tokens of the prompt that go with an output: outputs of one template begin alike


@dataclass(slots=True)
class _Match:
    """Where a row is in the corpus: the longest known suffix of its first `seen` tokens ends at `place`."""

    seen: int = 0
    length: int = 0
    place: int = 0


class SuffixDrafter:
    """Every row that ends teaches those that run and those to come."""

    def __init__(self, corpus: Corpus | None = None) -> None:
        self._corpus = corpus or Corpus()
        self._matches: dict[Row, _Match] = {}

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        return [self._propose(row, limit) for row, limit in zip(rows, limits, strict=True)]

    def forget(self, row: Row) -> None:
        self._matches.pop(row, None)
        if row.finish_reason is not None:
            self._corpus.add(row.tokens[max(0, row.prompt_tokens - _PROMPT_TAIL) :])

    def _propose(self, row: Row, limit: int) -> Draft:
        match = self._matches.setdefault(row, _Match())
        self._follow(match, row.tokens)
        return Draft(self._corpus.read(match.place, limit), match.length, "suffix")

    def _follow(self, match: _Match, tokens: Sequence[int]) -> None:
        """Go along while the row says what the corpus says; else look for another place."""
        new = tokens[match.seen :] if match.length else ()
        if new and self._corpus.continues(match.place, new):
            match.length = min(match.length + len(new), MAX_MATCH)
            match.place += len(new)
        else:
            match.length, match.place = self._corpus.find(tokens)
        match.seen = len(tokens)
