"""From captured texts to a network that can be trained."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.distill.initialising import initialise, make_config
from worker.distill.shards import Shards
from worker.distill.text import Text
from worker.distill.vocabulary import bigram_counts, draft_vocabulary, markov_factors
from worker.engine.dspark.checkpoints import TargetFacts
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.loading import load_model
from worker.engine.types import Pair

LAYERS = 2
MARKOV_RANK = 64
SEED = 0


@dataclass(frozen=True, slots=True)
class Beginning:
    network: DSparkNetwork  # in the pair's dtype, but float64
    bigrams: Tensor  # sparse [V, V_d]: what is expected after each token


def begin(pair: Pair, texts: Shards, taps: tuple[int, ...], gamma: int, draft_vocab: int) -> Beginning:
    """A network for the pair's target, initialised from it and from what it wrote."""
    loaded = load_model(
        pair.target, "float32", pair.device, trust_remote_code=pair.trust_remote_code, attention="sdpa"
    )
    vocab_size = TargetFacts.of(loaded).vocab_size
    written = texts.without_features()
    draft_ids = draft_vocabulary(written, vocab_size, min(draft_vocab, vocab_size))
    bigrams = bigram_counts(written, draft_ids, vocab_size)
    mask = _unused_token(written, vocab_size)
    config = make_config(loaded, taps, LAYERS, gamma, MARKOV_RANK, len(draft_ids), mask)
    factors = markov_factors(bigrams, MARKOV_RANK, SEED)
    network = initialise(config, loaded, texts, draft_ids, factors, SEED)
    dtype = torch.float32 if pair.dtype == "float64" else getattr(torch, pair.dtype)
    return Beginning(network.to(dtype), bigrams)


def _unused_token(texts: Sequence[Text], vocab_size: int) -> int:
    """To stand for a mask: the last one that occurs in no text."""
    used = torch.zeros(vocab_size, dtype=torch.bool)
    for text in texts:
        used[text.tokens.long()] = True
    unused = (~used).nonzero().flatten().tolist()
    return unused[-1] if unused else vocab_size - 1
