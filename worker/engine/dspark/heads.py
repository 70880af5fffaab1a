"""What makes a block's tokens depend on each other, and how sure it is of them (arXiv 2607.05147)."""

import torch
from torch import Tensor, nn

from worker.engine.dspark.config import DSparkConfig


class MarkovHead(nn.Module):
    """Adds to the logits of a position what the token before it makes likely."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, hidden = config.markov_rank, config.hidden_size
        self.rank = rank
        self._kind = config.markov_kind
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self._kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif self._kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    def embed(self, previous: Tensor) -> Tensor:
        """e = W1[x_{k-1}], [..., rank]."""
        return self.markov_w1(previous)

    def forward(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The bias [..., draft vocabulary] of one position, and the state for the next; None at the first.

        `embedded` [..., rank] is of the token before it, `hidden` [..., d] the position's own output.
        """
        if self._kind == "gated":
            gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], dim=-1)))
            return self.markov_w2(gate * embedded), None
        if self._kind == "rnn":
            state = torch.zeros_like(embedded) if state is None else state
            joint = self.joint_proj(torch.cat([state, embedded, hidden], dim=-1))
            gate, candidate, out = joint.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            return self.markov_w2(torch.tanh(out)), gate * state + (1 - gate) * torch.tanh(candidate)
        return self.markov_w2(embedded), None


class ConfidenceHead(nn.Module):
    """P(the proposal at a position is accepted | those before it are), before calibration."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self._with_markov = config.confidence_with_markov and config.markov_rank > 0
        width = config.hidden_size + (config.markov_rank if self._with_markov else 0)
        self.proj = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """In logits [...], of hidden [..., d] and the embedding [..., rank] of the token before."""
        if self._with_markov and embedded is not None:
            hidden = torch.cat([hidden, embedded], dim=-1)
        return self.proj(hidden)[..., 0]
