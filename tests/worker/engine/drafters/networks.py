"""DSpark networks for tiny targets: of random weights, and one that knows what its target will say."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.worker.engine.tiny import Kind, save_tiny_model, tiny_model, tiny_tokenizer
from worker.engine.dspark.checkpoints import save_network
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork

LAYERS = 4  # of a target
CONFIG = DSparkConfig(
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=320,
    draft_vocab_size=320,
    taps=(0, 2),
    block_size=5,
    mask_token_id=3,
    rope_theta=1e4,
    markov_rank=32,
    has_confidence=True,
    num_target_layers=LAYERS,
)
FUSED = replace(
    CONFIG, hidden_size=64, intermediate_size=96, head_dim=32
)  # sizes that the CPU's kernel takes


def save_target(folder: Path, dtype: torch.dtype, kind: Kind = "qwen3", **sizes: Any) -> Path:
    return save_tiny_model(folder, kind, dtype=dtype, layers=LAYERS, **sizes)


def save_random(folder: Path, config: DSparkConfig = CONFIG, dtype: torch.dtype = torch.float64) -> Path:
    """Its proposals are hardly ever right."""
    save_network(random_network(config, dtype), folder, "any")
    return folder


def random_network(config: DSparkConfig, dtype: torch.dtype) -> DSparkNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = DSparkNetwork(config).to(dtype)
        for name, parameter in network.named_parameters():
            parameter.data.normal_(mean=float("norm" in name), std=0.2)
    if config.draft_vocab_size < config.vocab_size:
        network.token_ids = torch.arange(config.draft_vocab_size) * 2
    return network.requires_grad_(False).eval()


def save_forgetful_target(folder: Path, dtype: torch.dtype) -> Path:
    """Its next token depends on the last one, and on little else."""
    model = tiny_model("llama", dtype=dtype, layers=LAYERS)
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter.data *= 0.005
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_knowing(
    folder: Path, target: Path, config: DSparkConfig = CONFIG, dtype: torch.dtype = torch.float64
) -> Path:
    """For a forgetful target: its Markov head is the target's embeddings and head."""
    model = cast(Any, tiny_model("llama", dtype=dtype, layers=LAYERS).from_pretrained(target, dtype=dtype))
    network = random_network(config, dtype)
    embeddings = model.get_input_embeddings().weight
    head = cast(Any, network.markov_head)
    network.norm.weight.data.zero_()
    head.markov_w1.weight.data.copy_(embeddings / embeddings.pow(2).mean(dim=-1, keepdim=True).sqrt())
    head.markov_w2.weight.data.copy_(model.get_output_embeddings().weight[network.token_ids])
    save_network(network, folder, "any")
    return folder


@torch.no_grad()
def from_scratch(network: DSparkNetwork, features: Tensor, tokens: list[int], length: int) -> Tensor:
    """H of the block after a whole text, whose last token is the anchor; features of all tokens before it."""
    config, anchor = network.config, len(tokens) - 1
    inputs = length + (not config.anchor_predicts)
    before = torch.arange(anchor)
    context = network.context_keys_values(network.context(features), network.rotation(before))
    block = torch.arange(anchor, anchor + inputs)

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = (torch.cat(pair) for pair in zip(context[layer], (keys, values), strict=True))
        places = torch.cat([before, block])
        seen = torch.ones(len(block), len(places), dtype=torch.bool)
        if config.is_causal_in(layer):
            seen &= places <= block[:, None]
        if (window := config.window_of(layer)) is not None:
            seen &= places > block[:, None] - window
        parts = (part.transpose(0, 1)[None] for part in (queries, keys, values))
        return scaled_dot_product_attention(*parts, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)

    ids = torch.tensor([tokens[-1]] + [config.mask_token_id] * (inputs - 1))
    last = network.context(features)[-1].expand(len(ids), -1)
    hidden = network(network.start(ids, last), network.rotation(block), attend)
    return hidden[inputs - length :]
