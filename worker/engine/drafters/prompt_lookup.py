"""Proposes what followed the last time that the row's newest tokens occurred, in its prompt or its output."""

from collections.abc import Sequence

from worker.engine.drafters.protocol import Draft, Proposal
from worker.engine.rows import Row

# The longest suffix of MIN_NGRAM to MAX_NGRAM tokens that occurred before decides.
MIN_NGRAM = 2
MAX_NGRAM = 5
SURE_NGRAM = 3  # what followed so many follows again more often than what a small network says


class PromptLookup:
    """One index a row, brought up to date when the row is asked about."""

    def __init__(self) -> None:
        self._indexes: dict[Row, NgramIndex] = {}

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        return [self._propose(row, limit) for row, limit in zip(rows, limits, strict=True)]

    def forget(self, row: Row) -> None:
        self._indexes.pop(row, None)

    def spliced(self, row: Row, tokens: Sequence[int]) -> list[int]:
        """Another drafter's tokens, until what they end in occurred before: then what followed it there.

        The row was asked about in this step.
        """
        index, known = self._indexes[row], [*row.tokens, *tokens]
        for end in range(len(row.tokens) + 1, len(known)):
            match, follower = index.longest_match(known[max(0, end - MAX_NGRAM) : end])
            if match >= SURE_NGRAM:
                copied = index.continuation(known[:end], len(known) - end, follower)
                return [*known[len(row.tokens) : end], *copied]
        return list(tokens)

    def _propose(self, row: Row, limit: int) -> Draft:
        index = self._indexes.setdefault(row, NgramIndex())
        index.extend(row.tokens)
        match, follower = index.longest_match(row.tokens)
        return Draft(index.continuation(row.tokens, limit, follower), match, "prompt_lookup")


class NgramIndex:
    """Where each n-gram of a growing token list last ended with a token after it."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that follows it
        self._indexed = 0  # n-grams followed by a token at a smaller index are in

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the tokens added since the last call."""
        for length in range(MIN_NGRAM, MAX_NGRAM + 1):
            first = max(self._indexed, length)  # the first follower that is new
            starts = range(first - length, first)
            ngrams = zip(*(tokens[start:] for start in starts), strict=False)  # the last has no follower
            self._ends.update(zip(ngrams, range(first, len(tokens)), strict=False))
        self._indexed = len(tokens)

    def longest_match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """How many of the newest tokens are known, and where what followed them is; or (0, 0)."""
        for length in range(min(MAX_NGRAM, len(tokens)), MIN_NGRAM - 1, -1):
            follower = self._ends.get(tuple(tokens[-length:]))
            if follower is not None:
                return length, follower
        return 0, 0

    def continuation(self, tokens: Sequence[int], limit: int, follower: int) -> list[int]:
        """What followed; a copy that reaches the end goes on with what it copied. Nothing, if nothing did."""
        if not follower:
            return []
        period = len(tokens) - follower
        return [tokens[follower + i % period] for i in range(limit)]
