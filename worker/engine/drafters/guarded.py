"""A drafter may fail or answer nonsense; a row then goes on without it, and says why."""

from collections.abc import Mapping, Sequence

from worker.engine.drafters.protocol import Drafter, Proposal, Refusal
from worker.engine.rows import Row


class GuardedDrafter:
    """Asks the drafter for the rows it still serves, for no more than a step can use."""

    def __init__(self, drafter: Drafter, gamma: int, vocab_size: int) -> None:
        self._drafter = drafter
        self._gamma = gamma
        self._vocab_size = vocab_size

    def propose(self, rows: Sequence[Row]) -> list[Sequence[int]]:
        limits = {
            row: limit
            for row in rows
            if row.spec_disabled_reason is None and (limit := min(self._gamma, row.draft_limit)) > 0
        }
        proposals = self._ask(limits) if limits else {}
        return [proposals.get(row, ()) for row in rows]

    def forget(self, row: Row) -> None:
        self._drafter.forget(row)

    def _ask(self, limits: Mapping[Row, int]) -> dict[Row, Sequence[int]]:
        try:
            answers = self._drafter.propose(list(limits), list(limits.values()))
            return dict(self._accept(row, answer) for row, answer in zip(limits, answers, strict=True))
        except Exception as error:
            if len(limits) == 1:
                return {row: self._disable(row, f"the drafter failed: {_describe(error)}") for row in limits}
        # One row may be the cause: asked one by one, only that one loses its drafter.
        proposals: dict[Row, Sequence[int]] = {}
        for row, limit in limits.items():
            proposals |= self._ask({row: limit})
        return proposals

    def _accept(self, row: Row, answer: Proposal) -> tuple[Row, Sequence[int]]:
        if isinstance(answer, Refusal):
            return row, self._disable(row, answer.reason)
        beyond = [token for token in answer if not 0 <= token < self._vocab_size]
        if beyond:
            return row, self._disable(
                row, f"the drafter proposed {beyond[0]}, which is no token of the target"
            )
        return row, answer[: min(self._gamma, row.draft_limit)]

    def _disable(self, row: Row, reason: str) -> Sequence[int]:
        row.spec_disabled_reason = reason
        self._drafter.forget(row)
        return ()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
