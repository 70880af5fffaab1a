"""What the responses say of tokens alone: which to draft from, and which tend to follow which."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from worker.distill.text import Text

_FOLLOWERS = 8  # of each distribution, the most probable: what could have followed counts by its probability
_ROUNDS = 3  # of subspace iteration


def draft_vocabulary(texts: Iterable[Text], vocab_size: int, size: int, kept: Tensor | None = None) -> Tensor:
    """The `size` tokens that the target expected most often, ascending; among equals the lower id.

    Those in `kept` are among them, however rare.
    """
    expected = torch.zeros(vocab_size)
    for text in texts:
        expected.index_add_(0, text.top_ids.flatten(), text.top_probs.flatten().float())
    if kept is not None:
        expected[kept] = torch.inf
    return expected.sort(descending=True, stable=True).indices[:size].sort().values


def bigram_counts(texts: Iterable[Text], draft_ids: Tensor, vocab_size: int) -> Tensor:
    """Sparse [V, V_d]: how often a token is expected after another one, in responses."""
    place = torch.full((vocab_size,), -1)
    place[draft_ids] = torch.arange(len(draft_ids))
    indices: list[Tensor] = []
    weights: list[Tensor] = []
    for text in texts:
        before = text.tokens[text.prompt_tokens - 1 : -1].long()[:, None].expand(-1, _FOLLOWERS)
        after = place[text.top_ids[:, :_FOLLOWERS].long()]
        known = (after >= 0) & (text.top_probs[:, :_FOLLOWERS] > 0)  # float16 rounds the least to 0
        indices.append(torch.stack([before[:, : after.shape[1]][known], after[known]]))
        weights.append(text.top_probs[:, :_FOLLOWERS][known].float())
    return _sparse(torch.cat(indices, dim=1), torch.cat(weights), (vocab_size, len(draft_ids)))


def markov_factors(counts: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """W1 [V, r] and W2 [V_d, r], whose product is closest to the bigrams' pointwise mutual information.

    Negative information is left out, and that of rare bigrams discounted. By randomised subspace iteration.
    """
    matrix = _information(counts)
    transposed = matrix.t().coalesce()
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(counts.shape[1], min(rank + 16, *counts.shape), generator=generator)
    for _ in range(_ROUNDS):
        basis = cast(Tensor, torch.linalg.qr(transposed @ (matrix @ basis)).Q)
    left, scale, right = cast(tuple[Tensor, ...], torch.linalg.svd(matrix @ basis, full_matrices=False))
    root = scale[:rank].sqrt()
    w1, w2 = left[:, :rank] * root, (basis @ right.t())[:, :rank] * root
    missing = max(rank - len(root), 0)
    return pad(w1, (0, missing)), pad(w2, (0, missing))


def fitted_w2(counts: Tensor, w1: Tensor) -> Tensor:
    """W2 [V_d, r] whose product with a given W1 is closest to the same: least squares."""
    squares = w1.t() @ w1
    squares += torch.eye(len(squares)) * squares.diagonal().mean() * 1e-3
    return torch.linalg.solve(squares, (_information(counts).t().coalesce() @ w1).t()).t()


def _information(counts: Tensor) -> Tensor:
    """Sparse [V, V_d]: of the bigrams, as `markov_factors` has it."""
    rows, columns = counts.indices()
    values = counts.values()
    before = torch.zeros(counts.shape[0]).index_add_(0, rows, values)
    after = torch.zeros(counts.shape[1]).index_add_(0, columns, values)
    information = (values * values.sum() / (before[rows] * after[columns])).log().clamp(min=0)
    information = information * values / (values + 1)
    return _sparse(counts.indices(), information, counts.shape)


def _sparse(indices: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, tuple(shape), check_invariants=True).coalesce()
