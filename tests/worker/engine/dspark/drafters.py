"""Tiny DSpark networks with random weights, and a target for them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from worker.engine.dspark.checkpoints import TargetFacts
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork

WIDTH, VOCAB, LAYERS = 24, 40, 6
TARGET_NAME = "acme/tiny@main"

CONFIG = DSparkConfig(
    hidden_size=WIDTH,
    intermediate_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=VOCAB,
    draft_vocab_size=VOCAB,
    taps=(1, 2, 4),
    block_size=5,
    mask_token_id=39,
    rope_theta=1e4,
    markov_rank=6,
    has_confidence=True,
    num_target_layers=LAYERS,
    target=TARGET_NAME,
)


def random_network(config: DSparkConfig = CONFIG, dtype: torch.dtype = torch.float32) -> DSparkNetwork:
    """All weights random, the norms' too; a reduced draft vocabulary is every other token."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = DSparkNetwork(config).to(dtype)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(std=0.5)
    if config.draft_vocab_size < config.vocab_size:
        network.token_ids = torch.arange(config.draft_vocab_size) * 2 + 1
    return network.requires_grad_(False).eval()


def target_facts(dtype: torch.dtype = torch.float32, **changes: object) -> TargetFacts:
    generator = torch.Generator().manual_seed(3)

    def table() -> Tensor:
        return torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64).to(dtype)

    facts = TargetFacts(TARGET_NAME, WIDTH, LAYERS, embeddings=table(), head=table())
    return replace(facts, **changes)  # pyright: ignore[reportArgumentType]  # a test's own changes


def write(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint of one file."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")


def tensors_of(network: DSparkNetwork, with_tables: bool = False) -> dict[str, Tensor]:
    """By the names of public checkpoints; the tables are the embeddings and the head."""
    tables = ("embed_tokens.weight", "lm_head.weight")
    return {key: tensor for key, tensor in network.state_dict().items() if with_tables or key not in tables}
