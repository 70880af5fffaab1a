"""A drafter may fail or answer nonsense; a row then goes on without it, and says why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from worker.engine.cache import Chunk
from worker.engine.drafters.protocol import Draft, Drafter, Observer, Proposal, Refusal, Unasked
from worker.engine.rows import Row

_NOTHING = Draft(())


class GuardedDrafter:
    """Asks the drafter for the rows it still serves, for no more than a step can use."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.guarded = drafter
        self._vocab_size = vocab_size
        self._unasked = drafter.unasked_tokens if isinstance(drafter, Unasked) else 0

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Draft]:
        """A proposal for each row, of no more tokens than its limit; at 0 of what comes unasked."""
        useful = {
            row: min(limit, row.draft_limit)
            for row, limit in zip(rows, limits, strict=True)
            if row.spec_disabled_reason is None and min(limit or self._unasked, row.draft_limit) > 0
        }
        drafts = self._ask(useful) if useful else {}
        return [drafts.get(row, _NOTHING) for row in rows]

    @property
    def taps(self) -> tuple[int, ...]:
        return taps_of(self.guarded)

    def observe(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor, logits: Tensor) -> None:
        """Shows an observer the pass; one that fails has missed it, and serves none of its rows any more."""
        if not isinstance(self.guarded, Observer):
            return
        try:
            self.guarded.observe(rows, chunks, features, logits)
        except Exception as error:
            for row in rows:
                self._disable(row, f"the drafter failed: {_describe(error)}")

    def shareable(self, row: Row) -> int:
        """How many of an ended row's first positions another row may take over."""
        return self.guarded.shareable(row) if isinstance(self.guarded, Observer) else row.cached

    def forget(self, row: Row) -> None:
        self.guarded.forget(row)

    def _ask(self, limits: Mapping[Row, int]) -> dict[Row, Draft]:
        try:
            answers = self.guarded.propose(list(limits), list(limits.values()))
            return {
                row: self._accept(row, limits[row], answer)
                for row, answer in zip(limits, answers, strict=True)
            }
        except Exception as error:
            if len(limits) == 1:
                return {row: self._disable(row, f"the drafter failed: {_describe(error)}") for row in limits}
        # One row may be the cause: asked one by one, only that one loses its drafter.
        drafts: dict[Row, Draft] = {}
        for row, limit in limits.items():
            drafts |= self._ask({row: limit})
        return drafts

    def _accept(self, row: Row, limit: int, answer: Proposal) -> Draft:
        if isinstance(answer, Refusal):
            return self._disable(row, answer.reason)
        draft = answer if isinstance(answer, Draft) else Draft(answer)
        beyond = [token for token in draft.tokens if not 0 <= token < self._vocab_size]
        if beyond:
            return self._disable(row, f"the drafter proposed {beyond[0]}, which is no token of the target")
        tokens = draft.tokens[: min(limit or self._unasked, row.draft_limit)]
        if row.constraints is not None:
            tokens = row.constraints.admissible(tokens)
        if len(tokens) < len(draft.tokens):
            return replace(draft, tokens=tokens)
        return draft

    def _disable(self, row: Row, reason: str) -> Draft:
        row.spec_disabled_reason = reason
        self.guarded.forget(row)
        return _NOTHING


def taps_of(drafter: Drafter | None) -> tuple[int, ...]:
    """What it wants to see of the target; () if nothing."""
    return drafter.taps if isinstance(drafter, Observer) else ()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
