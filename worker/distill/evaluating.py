"""What a drafter reaches on held-out responses, beside what it has to beat."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.distill.text import Text
from worker.distill.walking import Propose, Tally, proposals_of, walk
from worker.engine.drafters.prompt_lookup import SURE_NGRAM, NgramIndex
from worker.engine.dspark.network import DSparkNetwork


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Tallies by method and number of proposals, and the drafter's own by kind of prompt."""

    drafter: Mapping[int, Tally]
    mixed: Mapping[int, Tally]
    lookup: Mapping[int, Tally]
    bigram: Mapping[int, Tally]
    kinds: Mapping[str, Tally]  # at the most proposals
    responses: int


def drafter_tally(network: DSparkNetwork, texts: Sequence[Text]) -> Tally:
    """Of the drafter alone, at its full length."""
    tally = Tally()
    for text in texts:
        tally.add(_walk(text, _of_drafter(text, proposals_of(network, text))))
    return tally


def evaluate(
    network: DSparkNetwork,
    texts: Sequence[Text],
    kinds: Sequence[str],
    followers: Tensor,
    gammas: Sequence[int],
) -> Evaluation:
    """`kinds`: of each text's prompt. `followers` [V]: after each token the likeliest one, -1 if unknown."""
    names = ("drafter", "mixed", "lookup", "bigram")
    tallies = {name: {gamma: Tally() for gamma in gammas} for name in names}
    by_kind: dict[str, Tally] = {}
    chain: list[int] = followers.tolist()
    for text, kind in zip(texts, kinds, strict=True):
        drafts = proposals_of(network, text)
        for gamma in gammas:
            drafter = _of_drafter(text, drafts, gamma)
            lookup = _of_lookup(text, gamma)
            methods = {
                "drafter": drafter,
                "mixed": _of_lookup(text, gamma, SURE_NGRAM, drafter),
                "lookup": lookup,
                "bigram": _of_bigrams(text, chain, gamma),
            }
            for name, propose in methods.items():
                tally = _walk(text, propose)
                tallies[name][gamma].add(tally)
                if name == "drafter" and gamma == max(gammas):
                    by_kind.setdefault(kind, Tally()).add(tally)
    return Evaluation(**tallies, kinds=by_kind, responses=len(texts))


def likeliest_followers(counts: Tensor, draft_ids: Tensor) -> Tensor:
    """[V], of sparse counts [V, V_d] of bigrams; -1 where a token never came."""
    (before, after), values = counts.indices(), counts.values()
    order = values.argsort(stable=True)  # the last one written is the most frequent
    best = np.full(counts.shape[0], -1)
    best[before[order].numpy()] = draft_ids[after[order]].numpy()  # torch promises no order
    return torch.from_numpy(best)


def _walk(text: Text, propose: Propose) -> Tally:
    return walk(_tokens(text), text.prompt_tokens, propose)


def _tokens(text: Text) -> list[int]:
    return text.tokens.tolist()


def _of_drafter(text: Text, drafts: Sequence[Sequence[int]], gamma: int | None = None) -> Propose:
    return lambda anchor: drafts[anchor - text.prompt_tokens][:gamma]


def _of_lookup(
    text: Text, gamma: int, least: int = 1, otherwise: Callable[[int], Sequence[int]] = lambda _: ()
) -> Propose:
    """What followed the newest tokens before, if at least so many of them recur."""
    index, tokens = NgramIndex(), _tokens(text)

    def propose(anchor: int) -> Sequence[int]:
        known = tokens[: anchor + 1]
        index.extend(known)
        match, follower = index.longest_match(known)
        return index.continuation(known, gamma, follower) if match >= least else otherwise(anchor)

    return propose


def _of_bigrams(text: Text, followers: Sequence[int], gamma: int) -> Propose:
    tokens = _tokens(text)

    def propose(anchor: int) -> Sequence[int]:
        chain: list[int] = [tokens[anchor]]
        while len(chain) <= gamma and (follower := followers[chain[-1]]) >= 0:
            chain.append(follower)
        return chain[1:]

    return propose
