"""What every packaging shares: the config of transformers' Qwen3, and the keys of DSpark's heads."""

from dataclasses import dataclass
from typing import Any, cast

from transformers import CONFIG_MAPPING, PreTrainedConfig, Qwen3Config

from worker.engine.dspark.checkpoints.fields import Fields
from worker.engine.dspark.config import DSparkConfig
from worker.engine.errors import ModelLoadError
from worker.engine.quiet import quiet


@dataclass(frozen=True, slots=True)
class Trained:
    """What a packaging says in words of its own."""

    taps: tuple[int, ...]
    anchor_predicts: bool
    is_causal: bool | None  # None: in layers with a window alone
    num_target_layers: int | None
    target: str | None


def read_config(backbone: Fields, heads: Fields, trained: Trained) -> DSparkConfig:
    """The config of a network whose layers `backbone` describes, and whose heads `heads`."""
    layers = _with_defaults(backbone)
    if (activation := layers.word("hidden_act")) != "silu":
        raise ModelLoadError(f"{backbone.where} says hidden_act = {activation!r}: only 'silu' is computed")
    window, unwindowed = _windows(layers)
    rank = heads.integer("markov_rank", 0)
    kind = heads.word("markov_head_type", "vanilla").lower()
    if kind not in ("vanilla", "gated", "rnn"):
        raise heads.refusal("markov_head_type", "vanilla, gated or rnn")
    gamma = heads.integer("block_size") - (not trained.anchor_predicts)
    if gamma < 1:
        raise heads.refusal("block_size", "room for one proposal")
    vocab_size = layers.integer("vocab_size")
    width, num_heads = layers.integer("hidden_size"), layers.integer("num_attention_heads")
    return DSparkConfig(
        hidden_size=width,
        intermediate_size=layers.integer("intermediate_size"),
        num_layers=layers.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=layers.integer("num_key_value_heads", num_heads),
        head_dim=layers.integer("head_dim", width // num_heads),
        vocab_size=vocab_size,
        draft_vocab_size=heads.integer("draft_vocab_size", vocab_size),
        taps=trained.taps,
        block_size=gamma,
        mask_token_id=heads.integer("mask_token_id"),
        rope_theta=_rope_theta(layers),
        rope_interleaved=not heads.flag("rope_is_neox_style", True),
        rms_norm_eps=layers.number("rms_norm_eps"),
        markov_rank=rank,
        markov_kind=kind,
        has_confidence=heads.flag("enable_confidence_head", False),
        confidence_with_markov=heads.flag("confidence_head_with_markov", rank > 0),
        window=window,
        unwindowed=unwindowed,
        is_causal=trained.is_causal,
        anchor_predicts=trained.anchor_predicts,
        feeds_last_feature=heads.flag("feeds_last_feature", False),
        num_target_layers=trained.num_target_layers,
        target=trained.target,
    )


def _with_defaults(backbone: Fields) -> Fields:
    """transformers writes only what differs from a config class's defaults: let it fill in the rest."""
    model_type = backbone.word("model_type", "qwen3")
    values = {key: value for key, value in backbone.values.items() if key != "model_type"}
    try:
        with quiet():
            config_class = cast(Any, CONFIG_MAPPING.get(model_type, Qwen3Config))
            config = cast(PreTrainedConfig, config_class(**values))
    except Exception as error:  # whatever transformers raises for a value that it refuses
        reason = " ".join(str(error).split())
        raise ModelLoadError(f"{backbone.where} does not describe a Qwen3 network: {reason}") from error
    return Fields(config.to_dict(), backbone.where)


def _rope_theta(layers: Fields) -> float:
    """Of plain rotation. Older configs have it at the top: transformers has moved it to rope_parameters."""
    rope = layers.table("rope_parameters")
    kind = rope.word("rope_type", rope.word("type", "default"))
    if kind != "default":
        raise ModelLoadError(f"{layers.where} scales its positions ({kind!r}): only plain RoPE is computed")
    return rope.number("rope_theta")


def _windows(layers: Fields) -> tuple[int | None, frozenset[int]]:
    """The window, and the layers that have none although others do."""
    kinds = layers.words("layer_types") if "layer_types" in layers else ()
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise ModelLoadError(
            f"{layers.where} has layers of type {sorted(unknown)}: "
            "only full_attention and sliding_attention are computed"
        )
    if "sliding_attention" not in kinds:
        return None, frozenset()
    full = frozenset(index for index, kind in enumerate(kinds) if kind == "full_attention")
    return layers.integer("sliding_window"), full
