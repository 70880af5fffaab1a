"""A drafter that costs something, asked where one that costs nothing does not promise as much."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from torch import Tensor

from worker.engine.cache import Chunk
from worker.engine.drafters.best_of import Judge
from worker.engine.drafters.dspark import DSparkDrafter
from worker.engine.drafters.prompt_lookup import PromptLookup
from worker.engine.drafters.protocol import Draft, Proposal, Refusal
from worker.engine.rows import Row

_RATE = 0.02  # at which what the network promises is followed


class LookupFirst:
    """Of both proposals a row gets the one that promises more accepted tokens."""

    def __init__(self, lookup: PromptLookup, network: DSparkDrafter, judge: Judge, gamma: int) -> None:
        """`gamma`: what lookup may propose for any row."""
        self._lookup, self._network, self._judge = lookup, network, judge
        self.unasked_tokens = gamma
        self._usual = inf  # what the network promises, on average; until that is known, all rows are asked

    @property
    def taps(self) -> tuple[int, ...]:
        return self._network.taps

    def observe(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor, logits: Tensor) -> None:
        self._network.observe(rows, chunks, features, logits)

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        proposals = list(self._lookup.propose(rows, [limit or self.unasked_tokens for limit in limits]))
        promised = [self._promise(row, proposal) for row, proposal in zip(rows, proposals, strict=True)]
        asked = [i for i, limit in enumerate(limits) if limit and self._may_do_better(promised[i])]
        answers = self._network.propose([rows[i] for i in asked], [limits[i] for i in asked])
        for i, answer in zip(asked, answers, strict=True):
            answer = self._spliced(rows[i], answer)
            promise = self._promise(rows[i], answer)
            if isinstance(answer, Draft) and answer.tokens:
                self._usual = promise if self._usual == inf else (1 - _RATE) * self._usual + _RATE * promise
            if isinstance(answer, Refusal) or promise >= promised[i]:
                proposals[i] = answer
        return proposals

    def shareable(self, row: Row) -> int:
        return self._network.shareable(row)

    def forget(self, row: Row) -> None:
        self._lookup.forget(row)
        self._network.forget(row)

    def _spliced(self, row: Row, answer: Proposal) -> Proposal:
        """Of a sampled row they follow its noise, of another its penalties or grammar: no lookup knows those.

        How sure the network was of what is replaced stands for what replaces it.
        """
        is_free = row.constraints is None and row.request.sampling.temperature == 0
        if not isinstance(answer, Draft) or len(answer.tokens) < 2 or not is_free:
            return answer
        return replace(answer, tokens=self._lookup.spliced(row, answer.tokens))

    def _may_do_better(self, promise: float) -> bool:
        return not promise or promise < self._usual

    def _promise(self, row: Row, proposal: Proposal) -> float:
        return self._judge(row, proposal) if isinstance(proposal, Draft) and proposal.tokens else 0.0
