"""The loss in pieces, and its gradient by hand, are what autograd makes of the whole."""

import torch
from torch import Tensor

from worker.distill.loss import Slots, distances

_SLOTS, _WIDTH, _RANK, _VOCAB, _TOP = 700, 12, 5, 50, 6


def _case() -> tuple[list[Tensor], Slots]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    p = random(_SLOTS, 60).softmax(-1)
    probs, ids = p.sort(descending=True)
    ids = torch.where(ids < _VOCAB, ids, -1)[:, :_TOP]
    tokens = torch.randint(-1, _VOCAB, (_SLOTS,), generator=generator)
    parts = [random(_SLOTS, _WIDTH), random(_SLOTS, _RANK), random(_VOCAB, _WIDTH), random(_VOCAB, _RANK)]
    return parts, Slots(tokens, ids, probs[:, :_TOP])


def _dense(parts: list[Tensor], slots: Slots, ce: float, l1: float) -> tuple[Tensor, Tensor]:
    """By the definition: p has its known tokens, and the rest of it is where q is nowhere."""
    hidden, embedded, head, w2 = parts
    q = (hidden @ head.t() + embedded @ w2.t()).softmax(-1)
    p = torch.zeros_like(q)
    inside = slots.top_ids >= 0
    p.scatter_add_(1, slots.top_ids.clamp(min=0), slots.top_probs * inside)
    l1s = (q - p).abs().sum(1) + 1 - p.sum(1)
    entropies = -q.gather(1, slots.tokens.clamp(min=0)[:, None])[:, 0].log() * (slots.tokens >= 0)
    return (ce * entropies + l1 * l1s).mean(), l1s


def test_it_is_the_dense_one_and_so_are_its_gradients() -> None:
    parts, slots = _case()
    learnt = (0, 1, 3)  # the head is the target's
    results: list[list[Tensor]] = []
    for compute in (lambda p: distances(*p, slots, 0.3, 0.7), lambda p: _dense(p, slots, 0.3, 0.7)):
        leaves = [part.clone().requires_grad_(index in learnt) for index, part in enumerate(parts)]
        loss, l1s = compute(leaves)
        loss.backward()
        results.append([loss.detach(), l1s.detach(), *(leaves[i].grad for i in learnt)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-8)
