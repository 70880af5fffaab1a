"""The loss of a slot: cross-entropy, distance of the distributions, and confidence (arXiv 2607.05147).

Logits over a whole draft vocabulary are most of a step. They are made in pieces, and their gradient at once:
with q = softmax(z), the target's sparse p, S the tokens of p where q < p, and m the mass of q there,

    d CE / dz = q - onehot(token),    d ||q - p||_1 / dz = 2 m q - 2 q [in S].
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from worker.distill.batches import ROUND

_PIECE = 320  # slots whose logits are made at once: they stay in a CPU's cache


@dataclass(frozen=True, slots=True)
class Slots:
    """What is to be proposed in each of N slots, in the draft vocabulary; -1 where that has no such token."""

    tokens: Tensor  # [N]
    top_ids: Tensor  # [N, K]
    top_probs: Tensor  # [N, K]


class _Distances(torch.autograd.Function):
    """(CE [N], L1 [N]) of hidden [N, d] by head [V, d] and Markov embeddings [N, r] by W2 [V, r]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        embedded: Tensor,
        head: Tensor,
        w2: Tensor,
        slots: Slots,
        ce: float,
        l1: float,
    ) -> tuple[Tensor, Tensor]:
        dtype = head.dtype
        both = torch.cat([head, w2.to(dtype)], dim=1)
        count = len(hidden)
        inputs = torch.cat([hidden.to(dtype), embedded.to(dtype)], dim=1)
        inputs = pad(inputs, (0, 0, 0, -count % ROUND))
        entropies, l1s = (torch.zeros(count, device=hidden.device) for _ in range(2))
        d_inputs = torch.empty_like(inputs)
        d_w2 = torch.zeros(w2.shape, device=w2.device)
        for start in range(0, len(inputs), _PIECE):
            piece = slice(start, start + _PIECE)
            gradient = torch.softmax(inputs[piece] @ both.t(), dim=-1)
            gradient[count - start :] = 0
            entropies[piece], l1s[piece] = _to_gradient(gradient[: count - start], slots, piece, ce, l1)
            torch.mm(gradient, both, out=d_inputs[piece])
            d_w2 += gradient.t() @ inputs[piece, hidden.shape[1] :]
        ctx.save_for_backward(d_inputs[:count], d_w2)
        ctx.width, ctx.dtypes = hidden.shape[1], (hidden.dtype, embedded.dtype, w2.dtype)
        ctx.mark_non_differentiable(l1s)
        return ce * entropies.mean() + l1 * l1s.mean(), l1s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_inputs, d_w2 = ctx.saved_tensors
        of_hidden, of_embedded, of_w2 = ctx.dtypes
        d_inputs = d_inputs * grads[0].to(d_inputs.dtype)
        hidden, embedded = d_inputs[:, : ctx.width], d_inputs[:, ctx.width :]
        return (
            hidden.to(of_hidden),
            embedded.to(of_embedded),
            None,
            (d_w2 * grads[0]).to(of_w2),
            None,
            None,
            None,
        )


def distances(
    hidden: Tensor, embedded: Tensor, head: Tensor, w2: Tensor, slots: Slots, ce: float, l1: float
) -> tuple[Tensor, Tensor]:
    """The mean over slots of ce * CE + l1 * ||q - p||_1, and of each slot the latter, without gradient."""
    return _Distances.apply(hidden, embedded, head, w2, slots, ce, l1)


def _to_gradient(q: Tensor, slots: Slots, piece: slice, ce: float, l1: float) -> tuple[Tensor, Tensor]:
    """The slots' CE and L1. The loss's gradient by the piece's logits takes the place of q [n, V]."""
    share = 1 / len(slots.tokens)
    ids, p, tokens = slots.top_ids[piece], slots.top_probs[piece], slots.tokens[piece]
    known, has_token = ids >= 0, tokens >= 0
    ids, tokens = ids.clamp(min=0), tokens.clamp(min=0)
    at_ids = q.gather(1, ids).float() * known
    at_token = q.gather(1, tokens[:, None])[:, 0].float()
    below = known & (at_ids < p)
    mass = (at_ids * below).sum(1)
    distance = (at_ids - p).abs().sum(1) + 1 - at_ids.sum(1) + (1 - p.sum(1)).clamp(min=0)
    entropy = -at_token.clamp(min=1e-12).log() * has_token
    q *= (share * (ce * has_token + 2 * l1 * mass))[:, None].to(q.dtype)
    rows = torch.arange(len(q), device=q.device)[:, None] * q.shape[1]
    # put_, since scatter_add_ copies all of q where it has 16 bits
    q.put_(rows + ids, (-2 * l1 * share * at_ids * below).to(q.dtype), accumulate=True)
    q.put_(rows + tokens[:, None], (-ce * share * has_token)[:, None].to(q.dtype), accumulate=True)
    return entropy, distance
