"""The token at an output position, as a function of the target's logits and the sample's key alone.

Sampling is Gumbel-max, run as the race it equals: token i arrives at E_i / p_i, with E_i ~ Exp(1) keyed by
(seed, sample, position, i), and the first to arrive is chosen. Only the most probable tokens run alone;
all others run together, with their summed rate, and one is picked among them if they win.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from worker.engine.cpu.choosing import largest
from worker.engine.noise import uniforms
from worker.engine.transfer import to_device
from worker.engine.types import Sampling

# Tokens that run by themselves. Any number is exact: more cost noise, with fewer the rest wins more often.
CANDIDATES = 64
NOT_FINITE = -1  # in place of a token: the model's logits were NaN or infinite

_TOKEN_STREAM, _REST_STREAM = 0, 1


class Draw(NamedTuple):
    """What, besides the logits, decides a token."""

    sampling: Sampling
    sample_index: int
    position: int  # of the token in the output, from 0


def choose(
    logits: Tensor, draws: Sequence[Draw], candidates: int = CANDIDATES, token_ids: Tensor | None = None
) -> Tensor:
    """One token for each row of logits [N, V]; int64 [N]. `token_ids` [V]: the columns', if not in order."""
    highest, tokens = largest(logits)
    sampled = [index for index, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if sampled:
        some = to_device(torch.tensor(sampled), logits.device)
        chosen_draws = [draws[index] for index in sampled]
        tokens[some] = _sample(logits[some], highest[some, None], chosen_draws, candidates, token_ids)
    if token_ids is not None:
        tokens = token_ids[tokens]
    return torch.where(highest.isfinite(), tokens, NOT_FINITE)


def _sample(
    logits: Tensor, highest: Tensor, draws: Sequence[Draw], candidates: int, token_ids: Tensor | None
) -> Tensor:
    """Columns; their noise is that of their tokens."""
    if logits.dtype not in (torch.float32, torch.float64):
        logits, highest = logits.float(), highest.float()
    keys, top_ks, reals = _parameters(draws, logits.device)
    temperatures, top_ps, min_ps = reals[:, :1].to(logits.dtype), reals[:, 1:2], reals[:, 2:]

    scores = (logits - highest) / temperatures
    vocabulary = scores.shape[-1]
    candidates = min(candidates, vocabulary)
    top_scores, top_tokens = scores.topk(candidates)
    top_weights = top_scores.double().exp()
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True, dtype=torch.float64)

    filters = (top_ks > 0) | (top_ps < 1) | (min_ps > 0)
    if candidates < vocabulary and any(_filters(draw.sampling) for draw in draws):
        beyond = torch.where(
            top_ks > 0, top_ks >= candidates, top_weights.sum(-1, keepdim=True) < top_ps * total
        )
        # What min-p drops needs no sorting; only what top-k keeps decides how much top-p may drop of it.
        beyond &= (top_weights[:, -1:] >= min_ps) | ((top_ks > 0) & (top_ps < 1))
        for index in (filters & beyond)[:, 0].nonzero()[:, 0].tolist():  # the whole vocabulary must be sorted
            scores[index] = _filter(scores[index], top_ks[index], top_ps[index], min_ps[index])
            top_scores[index], top_tokens[index] = scores[index].topk(candidates)
            top_weights[index] = top_scores[index].double().exp()
            weights[index] = scores[index].exp()
            filters[index] = False
    kept = _kept(top_scores, top_weights, total, top_ks, top_ps, min_ps)
    top_weights = torch.where(filters, top_weights * kept, top_weights)

    rest_weights = weights.scatter_(-1, top_tokens, 0.0)
    rest = torch.where(filters, 0.0, rest_weights.sum(-1, keepdim=True, dtype=torch.float64))
    names = top_tokens if token_ids is None else token_ids[top_tokens]
    return _race(top_weights, top_tokens, names, rest[:, 0], rest_weights, keys)


def _parameters(draws: Sequence[Draw], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [N, 3], top-k [N, 1], and (temperature, top-p, min-p) [N, 3]; in two transfers."""
    integers = [(d.sampling.seed, d.sample_index, d.position, d.sampling.top_k) for d in draws]
    reals = [(d.sampling.temperature, d.sampling.top_p, d.sampling.min_p) for d in draws]
    moved = to_device(torch.tensor(integers), device)
    return moved[:, :3], moved[:, 3:], to_device(torch.tensor(reals, dtype=torch.float64), device)


def _filters(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _race(
    top_weights: Tensor, top_tokens: Tensor, names: Tensor, rest: Tensor, rest_weights: Tensor, keys: Tensor
) -> Tensor:
    seeds, samples, positions = keys[:, :1], keys[:, 1:2], keys[:, 2:]

    uniform, _ = uniforms(seeds, samples, positions, names, _TOKEN_STREAM)
    arrivals = -uniform.log() / top_weights
    first, winner = arrivals.min(dim=-1)
    tokens = top_tokens.gather(-1, winner[:, None])[:, 0]

    uniform, pick = uniforms(seeds, samples, positions, torch.zeros_like(positions), _REST_STREAM)
    rest_wins = -uniform[:, 0].log() / rest < first
    for index in rest_wins.nonzero()[:, 0].tolist():
        cumulative = rest_weights[index].double().cumsum(0)
        point = pick[index] * cumulative[-1]
        chosen = torch.searchsorted(cumulative, point, right=True)[0]
        tokens[index] = chosen.clamp(max=len(cumulative) - 1)  # should the product round up to the total
    return tokens


def _filter(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Scores [V] with -inf for the tokens that top-k, then top-p, and min-p leave out."""
    ordered, tokens = scores.sort(descending=True, stable=True)
    weights = ordered.double().exp()
    kept = _kept(ordered, weights, weights.sum(-1, keepdim=True), top_k, top_p, min_p)
    return torch.full_like(scores, -torch.inf).scatter(0, tokens, ordered.masked_fill(~kept, -torch.inf))


def _kept(
    scores: Tensor, weights: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Which of the most probable tokens, in descending order, stay; `total` is the whole vocabulary's weight.

    As transformers does: top-k keeps all that tie with the k-th, then top-p the fewest that reach its mass,
    then min-p those that are at least so probable in proportion to the first, whose weight is 1.
    """
    probable = weights >= min_p
    last = (top_k - 1).clamp(0, scores.shape[-1] - 1)
    kept = (top_k == 0) | (scores >= scores.gather(-1, last))
    weights = weights * kept
    mass = torch.where(top_k > 0, weights.sum(-1, keepdim=True), total)
    return kept & probable & ((weights.cumsum(-1) - weights < top_p * mass) | (top_p >= 1))
