"""Configs as the public packagings have them, but tiny, and what they say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.worker.engine.dspark.drafters import (
    CONFIG,
    LAYERS,
    VOCAB,
    WIDTH,
    random_network,
    target_facts,
    tensors_of,
    write,
)
from worker.engine.dspark.checkpoints import load_network
from worker.engine.dspark.config import DSparkConfig

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}
HEADS = {
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 6,
}
DEEPSPEC = (
    QWEN3
    | HEADS
    | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 7,
        "mask_token_id": 39,
        "num_anchors": 512,
        "num_target_layers": LAYERS,
        "target_layer_ids": [1, 2, 4],
    }
)
SPECFORGE = QWEN3 | {
    "architectures": ["DSparkDraftModel"],
    "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
    "block_size": 7,
    "dflash_config": HEADS
    | {
        "attention_mode": "gqa",
        "confidence_head_alpha": 1.0,
        "mask_token_id": 39,
        "projector_type": "dspark",
        "target_layer_ids": [1, 2, 4],
    },
    "num_target_layers": LAYERS,
}
LIQUID = QWEN3 | {
    "architectures": ["Lfm2DSparkDraftModel"],
    "block_size": 9,
    "dflash_config": {"mask_token_id": 39, "num_target_layers": LAYERS, "target_layer_ids": [1, 2, 4]},
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 6,
    "rope_is_neox_style": False,
    "rope_theta": 10000000.0,
}
ZLAB: dict[str, Any] = QWEN3 | {
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {"block_size": 16, "mask_token_id": 39, "target_layer_ids": [1, 2, 4]},
    "num_target_layers": LAYERS,
    "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
    "sliding_window": 4096,
    "use_sliding_window": True,
}
SPECULATORS: dict[str, Any] = HEADS | {
    "architectures": ["DSparkSpeculator"],
    "aux_hidden_state_layer_ids": [2, 3, 5],
    "block_size": 8,
    "draft_vocab_size": 12,
    "mask_token_id": 39,
    "sample_from_anchor": True,
    "sliding_window_non_causal": False,
    "speculators_config": {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 8}],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "acme/tiny"},
    },
    "speculators_model_type": "dspark",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    # As `to_diff_dict` writes it: what is a default of Qwen3's config class is not there.
    "transformer_layer_config": {
        key: QWEN3[key]
        for key in (
            "model_type",
            "head_dim",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "vocab_size",
        )
    },
}
READ = replace(CONFIG, block_size=7, rope_theta=1e6, rms_norm_eps=1e-5, target=None)
# Where it is not said whether a block is causal, it is in sliding layers.
NESTED = replace(READ, is_causal=None)
SPECULATED = replace(
    READ,
    block_size=8,
    draft_vocab_size=12,
    num_target_layers=None,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    target="acme/tiny",
    is_causal=None,
)


def load_config(folder: Path, config: dict[str, Any], expected: DSparkConfig = READ) -> DSparkConfig:
    """What is read of a checkpoint that has the tensors of `expected`."""
    network = random_network(expected)
    tensors = tensors_of(network)
    if expected.draft_vocab_size < VOCAB:
        tensors["d2t"] = network.token_ids - torch.arange(len(network.token_ids))
    write(folder, config, tensors)
    return load_network(folder, target_facts()).config
