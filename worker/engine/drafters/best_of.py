"""Several drafters for the same rows: each row gets the better proposal, step by step."""

from collections.abc import Callable, Sequence

from worker.engine.drafters.protocol import Draft, Drafter, Proposal
from worker.engine.rows import Row

Judge = Callable[[Row, Draft], float]


class BestOf:
    """For drafters that cost next to nothing and answer with a Draft: all are asked."""

    def __init__(self, drafters: Sequence[Drafter], judge: Judge) -> None:
        self._drafters = drafters
        self._judge = judge  # how many tokens of a proposal will be accepted

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        answers = [drafter.propose(rows, limits) for drafter in self._drafters]
        return [self._best(row, [*proposals]) for row, *proposals in zip(rows, *answers, strict=True)]

    def forget(self, row: Row) -> None:
        for drafter in self._drafters:
            drafter.forget(row)

    def _best(self, row: Row, proposals: Sequence[Proposal]) -> Proposal:
        drafts = [proposal for proposal in proposals if isinstance(proposal, Draft) and proposal.tokens]
        if len(drafts) < 2:
            return drafts[0] if drafts else ()
        return max(drafts, key=lambda draft: self._judge(row, draft))
