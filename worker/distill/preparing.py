"""From captured texts to a network that can be trained: a new one, or a drafter that is to learn more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from worker.distill.growing import grow
from worker.distill.initialising import initialise, layers_prefix, make_config
from worker.distill.shards import Shards
from worker.distill.text import Text
from worker.distill.vocabulary import bigram_counts, draft_vocabulary, markov_factors
from worker.engine.dspark.checkpoints import TargetFacts, load_network, read_config
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.loading import LoadedModel, load_model
from worker.engine.types import Pair
from worker.errors import ConfigurationError

LAYERS = 2
MARKOV_RANK = 64
SEED = 0


@dataclass(frozen=True, slots=True)
class Beginning:
    network: DSparkNetwork  # in the pair's dtype, but float64
    bigrams: Tensor  # sparse [V, V_d]: what is expected after each token
    seed: int  # of the order it then learns in


@dataclass(frozen=True, slots=True)
class Shape:
    """What is chosen of a network."""

    taps: tuple[int, ...]
    gamma: int
    draft_vocab: int


def shape_of(drafter: Path, draft_vocab: int | None) -> Shape:
    """Of a drafter that is to learn more, and may get a larger vocabulary.

    Raises ConfigurationError if its kind is not trained, or the vocabulary would be smaller.
    """
    config = read_config(drafter, str(drafter))
    if config != _trainable(config):
        raise ConfigurationError(
            f"the drafter {drafter} cannot learn more: training knows blocks whose anchor proposes, full "
            "attention, and a vanilla Markov head or none, as `worker distill` itself writes them"
        )
    if draft_vocab is not None and draft_vocab < config.draft_vocab_size:
        raise ConfigurationError(
            f"the drafter {drafter} can propose {config.draft_vocab_size:,} tokens, and --draft-vocab is "
            f"{draft_vocab:,}: with --begin-from it may grow, but takes away none"
        )
    return Shape(config.taps, config.block_size, draft_vocab or config.draft_vocab_size)


def check(pair: Pair, drafter: Path | None) -> None:
    """What `begin` cannot begin with, said before hours are spent on texts. Raises EngineError."""
    loaded = _load(pair)
    if drafter is None:
        layers_prefix(loaded)
    else:
        load_network(drafter, _facts(loaded))


def begin(pair: Pair, texts: Shards, shape: Shape, drafter: Path | None) -> Beginning:
    """A network for the pair's target: the drafter's, or one initialised from the target and what it wrote.

    Raises EngineError if the drafter is another target's, or the target's layers are of another kind.
    """
    loaded = _load(pair)
    dtype = torch.float32 if pair.dtype == "float64" else getattr(torch, pair.dtype)
    vocab_size = TargetFacts.of(loaded).vocab_size
    size = min(shape.draft_vocab, vocab_size)
    written = texts.without_features()
    if drafter is not None:
        network = load_network(drafter, _facts(loaded))
        seed, draft_ids = _seed_after(network), network.token_ids
        grows = size > len(draft_ids)
        if grows:
            draft_ids = draft_vocabulary(written, vocab_size, size, draft_ids)
        bigrams = bigram_counts(written, draft_ids, vocab_size)
        if grows:
            network = grow(network, draft_ids, bigrams, _facts(loaded))
        network.requires_grad_(True)
        network.embed_tokens.requires_grad_(False)
        network.lm_head.requires_grad_(False)
        return Beginning(network.to(pair.device, dtype), bigrams, seed)
    draft_ids = draft_vocabulary(written, vocab_size, size)
    bigrams = bigram_counts(written, draft_ids, vocab_size)
    network = _new(loaded, texts, shape, draft_ids, bigrams)
    return Beginning(network.to(pair.device, dtype), bigrams, SEED)


def _load(pair: Pair) -> LoadedModel:
    return load_model(
        pair.target, "float32", pair.device, trust_remote_code=pair.trust_remote_code, attention="sdpa"
    )


def _facts(loaded: LoadedModel) -> TargetFacts:
    """On the CPU, where a network begins whatever the device."""
    facts = TargetFacts.of(loaded)
    return replace(facts, embeddings=facts.embeddings.cpu(), head=facts.head.cpu())


def _new(
    loaded: LoadedModel, texts: Shards, shape: Shape, draft_ids: Tensor, bigrams: Tensor
) -> DSparkNetwork:
    mask = _unused_token(texts.without_features(), TargetFacts.of(loaded).vocab_size)
    config = make_config(loaded, shape.taps, LAYERS, shape.gamma, MARKOV_RANK, len(draft_ids), mask)
    return initialise(config, loaded, texts, draft_ids, markov_factors(bigrams, MARKOV_RANK, SEED), SEED)


def _seed_after(network: DSparkNetwork) -> int:
    """From what it has learnt: a rerun repeats itself, a further training takes an order of its own."""
    return crc32(network.norm.weight.detach().float().numpy().tobytes())


def _trainable(config: DSparkConfig) -> DSparkConfig:
    return replace(config, anchor_predicts=True, is_causal=False, window=None, markov_kind="vanilla")


def _unused_token(texts: Sequence[Text], vocab_size: int) -> int:
    """To stand for a mask: the last one that occurs in no text."""
    used = torch.zeros(vocab_size, dtype=torch.bool)
    for text in texts:
        used[text.tokens.long()] = True
    unused = (~used).nonzero().flatten().tolist()
    return unused[-1] if unused else vocab_size - 1
