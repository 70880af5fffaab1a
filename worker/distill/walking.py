"""How a drafter would do in decoding: a response is walked step by step, as its proposals are accepted.

Anchors drawn at random flatter: after a step of many tokens the next anchor is a hard one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.distill.attending import block_outputs
from worker.distill.batches import make_batch
from worker.distill.text import Text
from worker.engine.dspark.network import DSparkNetwork

# (tokens up to and with the anchor) -> proposals
Propose = Callable[[int], Sequence[int]]


@dataclass(slots=True)
class Tally:
    """Of steps; one without a proposal counts as one of which nothing was accepted."""

    steps: int = 0
    tried: list[int] = field(default_factory=list[int])  # by position: all before it were accepted
    accepted: list[int] = field(default_factory=list[int])

    @property
    def tau(self) -> float:
        """1 + accepted / steps."""
        return 1 + sum(self.accepted) / max(self.steps, 1)

    @property
    def rates(self) -> list[float]:
        """By position: P(accepted | those before it were)."""
        return [good / max(tried, 1) for good, tried in zip(self.accepted, self.tried, strict=True)]

    def add(self, other: "Tally") -> None:
        self.steps += other.steps
        self._grow(len(other.tried))
        for place, (tried, accepted) in enumerate(zip(other.tried, other.accepted, strict=True)):
            self.tried[place] += tried
            self.accepted[place] += accepted

    def note(self, tried: int, accepted: int) -> None:
        self.steps += 1
        self._grow(tried)
        for place in range(tried):
            if place <= accepted:
                self.tried[place] += 1
            self.accepted[place] += place < accepted

    def _grow(self, length: int) -> None:
        for counts in (self.tried, self.accepted):
            counts.extend([0] * (length - len(counts)))


def walk(tokens: Sequence[int], first: int, propose: Propose) -> Tally:
    """Decode tokens[first + 1:]; each anchor's proposals come from `propose(anchor)`."""
    tally = Tally()
    anchor = first
    while anchor < len(tokens) - 1:
        proposals = propose(anchor)[: len(tokens) - 1 - anchor]
        accepted = 0
        while accepted < len(proposals) and proposals[accepted] == tokens[anchor + 1 + accepted]:
            accepted += 1
        tally.note(len(proposals), accepted)
        anchor += accepted + 1
    return tally


@torch.inference_mode()
def proposals_of(network: DSparkNetwork, text: Text) -> list[list[int]]:
    """Greedy proposals at every anchor of a response, the first response token's first."""
    anchors = range(text.prompt_tokens, len(text.tokens) - 1)
    if not anchors:
        return []
    batch = make_batch([text], [anchors], network.config.block_size).to(network.norm.weight.device)
    return greedy(network, block_outputs(network, batch)[0], batch.inputs[0]).tolist()


def greedy(network: DSparkNetwork, hidden: Tensor, anchors: Tensor) -> Tensor:
    """Proposals [A, G], in the target's ids, for the blocks' outputs [A, G, d] and anchor tokens [A]."""
    logits = network.lm_head(hidden.to(network.lm_head.weight.dtype))
    state: Tensor | None = None
    previous = anchors
    chosen: list[Tensor] = []
    for slot in range(hidden.shape[1]):
        scores = logits[:, slot]
        if network.markov_head is not None:
            embedded = network.markov_head.embed(previous)
            bias, state = network.markov_head(embedded, hidden[:, slot], state)
            scores = scores + bias
        previous = network.token_ids[scores.argmax(dim=-1)]
        chosen.append(previous)
    return torch.stack(chosen, dim=1)
