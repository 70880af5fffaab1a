"""The token at an output position, as a function of the target's logits and the sample's key alone.

Sampling is Gumbel-max, run as the race it equals: token i arrives at E_i / p_i, with E_i ~ Exp(1) keyed by
(seed, sample, position, i), and the first to arrive is chosen. Only the most probable tokens run alone;
all others run together, with their summed rate, and one is picked among them if they win.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from worker.engine.cpu.choosing import largest, most_probable, scores_of
from worker.engine.noise import uniforms
from worker.engine.transfer import to_device
from worker.engine.types import Sampling

# Tokens that run by themselves. Any number is exact: more cost noise, with fewer the rest wins more often.
CANDIDATES = 64
_SORTED = 2048  # of those that a filter looks at, where the candidates do not tell it what to leave out
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
        theirs = logits if len(sampled) == len(draws) else logits[some]
        tokens[some] = _sample(theirs, highest[some], chosen_draws, candidates, token_ids)
    if token_ids is not None:
        tokens = token_ids[tokens]
    return torch.where(highest.isfinite(), tokens, NOT_FINITE)


class _Race(NamedTuple):
    """Who runs, of N rows; tokens are columns, and weights relative to the most probable one's."""

    scores: Callable[[int], Tensor]  # a row's [V]; of what is left out -inf
    tokens: Tensor  # [N, K]: these run alone
    weights: Tensor  # [N, K] float64
    rest: Tensor  # [N] float64: of all others, together


def _sample(
    logits: Tensor, highest: Tensor, draws: Sequence[Draw], candidates: int, token_ids: Tensor | None
) -> Tensor:
    """Columns; their noise is that of their tokens."""
    if logits.dtype == torch.float16:
        logits, highest = logits.float(), highest.float()
    keys, top_ks, reals = _parameters(draws, logits.device)
    temperatures = reals[:, 0]
    scores, tokens, rest = most_probable(logits, highest, temperatures, min(candidates, logits.shape[-1]))

    def scores_at(index: int) -> Tensor:
        one = slice(index, index + 1)
        return scores_of(logits[one], highest[one], temperatures[one])[0]

    race = _Race(scores_at, tokens, scores.double().exp(), rest)
    if any(_filters(draw.sampling) for draw in draws):
        race = _filtered(race, scores, top_ks, reals[:, 1:2], reals[:, 2:])
    return _first(race, race.tokens if token_ids is None else token_ids[race.tokens], keys)


def _filtered(race: _Race, scores: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor) -> _Race:
    """Without those that top-k, then top-p, and min-p leave out; scores [N, K] are the candidates'.

    It takes what is given over, to write into.
    """
    tokens, weights, rest = race.tokens, race.weights, race.rest
    total = weights.sum(-1, keepdim=True) + rest[:, None]
    filters = (top_ks > 0) | (top_ps < 1) | (min_ps > 0)
    beyond = _needs_more(scores, weights, total, top_ks, top_ps, min_ps)
    filtered: dict[int, Tensor] = {}
    many: list[int] = (filters & beyond & (rest[:, None] > 0))[:, 0].nonzero()[:, 0].tolist()
    for index in many:
        limits = top_ks[index : index + 1], top_ps[index : index + 1], min_ps[index : index + 1]
        filtered[index] = left = _filter(race.scores(index), total[index : index + 1], *limits)
        scores[index], tokens[index] = left.topk(scores.shape[-1])
        weights[index] = scores[index].double().exp()
        rest[index] = _others(left, tokens[index]).sum()
        filters[index] = False
    kept = _kept(scores, weights, total, top_ks, top_ps, min_ps)

    def scores_at(index: int) -> Tensor:
        return filtered[index] if index in filtered else race.scores(index)

    return _Race(
        scores_at,
        tokens,
        torch.where(filters, weights * kept, weights),
        torch.where(filters[:, 0], 0.0, rest),
    )


def _others(scores: Tensor, candidates: Tensor) -> Tensor:
    """Weights [V] of scores [V], none for the candidates."""
    return scores.double().exp().scatter(0, candidates, 0.0)


def _parameters(draws: Sequence[Draw], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [N, 3], top-k [N, 1], and (temperature, top-p, min-p) [N, 3]; in two transfers."""
    integers = [(d.sampling.seed, d.sample_index, d.position, d.sampling.top_k) for d in draws]
    reals = [(d.sampling.temperature, d.sampling.top_p, d.sampling.min_p) for d in draws]
    moved = to_device(torch.tensor(integers), device)
    return moved[:, :3], moved[:, 3:], to_device(torch.tensor(reals, dtype=torch.float64), device)


def _filters(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _first(race: _Race, names: Tensor, keys: Tensor) -> Tensor:
    """The tokens [N] that arrive first, of candidates called by names [N, K] in their noise."""
    uniform, _ = uniforms(keys, names, _TOKEN_STREAM)
    arrivals = -uniform.log() / race.weights
    first, winner = arrivals.min(dim=-1)
    tokens = race.tokens.gather(-1, winner[:, None])[:, 0]

    uniform, pick = uniforms(keys, torch.zeros_like(keys[:, :1]), _REST_STREAM)
    rest_wins = -uniform[:, 0].log() / race.rest < first
    others_win: list[int] = rest_wins.nonzero()[:, 0].tolist()
    for index in others_win:
        cumulative = _others(race.scores(index), race.tokens[index]).cumsum(0)
        point = pick[index] * cumulative[-1]
        chosen = torch.searchsorted(cumulative, point, right=True)[0]
        tokens[index] = chosen.clamp(max=len(cumulative) - 1)  # should the product round up to the total
    return tokens


def _needs_more(
    scores: Tensor, weights: Tensor, total: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor
) -> Tensor:
    """[N, 1]: whether more than the most probable tokens [N, K] may stay, or decide which of these do."""
    kth = scores.gather(-1, (top_ks - 1).clamp(0, scores.shape[-1] - 1))
    by_top_k, by_top_p = scores[:, -1:] >= kth, weights.sum(-1, keepdim=True) < top_ps * total
    # What min-p drops need not be known; but of what top-k keeps top-p drops a share.
    return torch.where(top_ks > 0, by_top_k, by_top_p) & (
        (weights[:, -1:] >= min_ps) | ((top_ks > 0) & (top_ps < 1))
    )


def _filter(scores: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Scores [V] with -inf for the tokens that top-k, then top-p, and min-p leave out; the rest is [1, 1]."""
    zero, one = scores.new_zeros(1), scores.new_ones(1)
    ordered, tokens, _ = most_probable(scores[None], zero, one, min(_SORTED, len(scores)))
    weights = ordered.double().exp()
    if ordered.shape[1] < len(scores) and _needs_more(ordered, weights, total, top_k, top_p, min_p):
        ordered, tokens = scores[None].sort(descending=True, stable=True)
        weights = ordered.double().exp()
    kept = _kept(ordered, weights, total, top_k, top_p, min_p) & (weights > 0)
    left = torch.full_like(scores, -torch.inf)
    left[tokens[kept]] = ordered[kept]
    return left


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
