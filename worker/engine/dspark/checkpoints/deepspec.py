"""DeepSpec's layout: a Qwen3 config with DSpark's keys beside its own. It is the one that we write."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from worker.engine.dspark.checkpoints.backbone import Trained, read_config
from worker.engine.dspark.checkpoints.fields import Fields
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork

ARCHITECTURE = "Qwen3DSparkModel"


def read(fields: Fields) -> DSparkConfig:
    return read_config(
        backbone=fields,
        heads=fields,
        trained=Trained(
            taps=fields.integers("target_layer_ids"),
            anchor_predicts=fields.flag("sample_from_anchor", True),
            is_causal=fields.flag("is_causal", False)
            if fields.flag("sliding_window_non_causal", True)
            else None,
            num_target_layers=fields.integer("num_target_layers"),
            target=fields.word("target_name", "") or None,
        ),
    )


def save_network(network: DSparkNetwork, folder: Path, target_name: str) -> None:
    """Write config.json and model.safetensors, without what is the target's: embeddings and head.

    `target_name` is what `name_of` calls the target. A reduced draft vocabulary is written as `d2t`,
    offsets as in speculators.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = network.config
    tensors = {
        key: tensor.detach().contiguous().cpu()
        for key, tensor in network.state_dict().items()
        if key not in ("embed_tokens.weight", "lm_head.weight")
    }
    if config.draft_vocab_size != config.vocab_size:
        ids = network.token_ids.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    written = json.dumps(_describe(config, network.norm.weight.dtype, target_name), indent=2)
    (folder / "config.json").write_text(written + "\n", encoding="utf-8")


def _describe(config: DSparkConfig, dtype: torch.dtype, target_name: str) -> dict[str, object]:
    """Keys of Qwen3, those of DeepSpec, and last our own, which say what DeepSpec takes for granted."""
    is_full = [config.window_of(layer) is None for layer in range(config.num_layers)]
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": str(dtype).removeprefix("torch."),
        "attention_bias": False,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["full_attention" if full else "sliding_attention" for full in is_full],
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "sliding_window": config.window,
        "tie_word_embeddings": False,
        "use_sliding_window": config.window is not None,
        "vocab_size": config.vocab_size,
        "block_size": config.block_inputs,
        "confidence_head_with_markov": config.confidence_with_markov,
        "enable_confidence_head": config.has_confidence,
        "markov_head_type": config.markov_kind,
        "markov_rank": config.markov_rank,
        "mask_token_id": config.mask_token_id,
        "num_target_layers": config.num_target_layers,
        "target_layer_ids": list(config.taps),
        "draft_vocab_size": config.draft_vocab_size,
        "rope_is_neox_style": not config.rope_interleaved,
        "sample_from_anchor": config.anchor_predicts,
        "feeds_last_feature": config.feeds_last_feature,
        "is_causal": config.is_causal,
        "sliding_window_non_causal": config.is_causal is not None,
        "target_name": target_name,
    }
