"""speculators' layout (read as of 0.9): the layers are a config inside the config.

Its layers are numbered by their inputs, so a tap is one less. W1 and the embeddings are of the target's
vocabulary, W2 and the head of the draft's.
"""

from worker.engine.dspark.checkpoints.backbone import Trained, read_config
from worker.engine.dspark.checkpoints.fields import Fields
from worker.engine.dspark.config import DSparkConfig
from worker.engine.errors import ModelLoadError

# What its config classes fill in where a file says nothing.
_DEFAULTS: dict[str, dict[str, object]] = {
    "dspark": {
        "block_size": 8,
        "draft_vocab_size": 32000,
        "markov_rank": 256,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
    "dflash": {"block_size": 8, "draft_vocab_size": 32000},
}
_OF_THE_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")


def read(fields: Fields) -> DSparkConfig:
    kind = fields.word("speculators_model_type")
    if kind not in _DEFAULTS:
        raise ModelLoadError(
            f"{fields.where} is of the type {kind!r} of speculators: dspark and dflash are what can be run"
        )
    heads = Fields({**_DEFAULTS[kind], **fields.values}, fields.where)
    layers = fields.table("transformer_layer_config")
    if not layers.values:
        raise fields.refusal("transformer_layer_config", "the config of its layers")
    verifier = fields.table("speculators_config").table("verifier")
    config = read_config(
        backbone=layers,
        heads=heads,
        trained=Trained(
            taps=tuple(layer - 1 for layer in fields.integers("aux_hidden_state_layer_ids")),
            anchor_predicts=_anchor_predicts(fields, kind),
            is_causal=False if fields.flag("sliding_window_non_causal", False) else None,
            num_target_layers=None,
            target=verifier.word("name_or_path", "") or None,
        ),
    )
    width = fields.integer("target_hidden_size", config.hidden_size)
    if width != config.hidden_size:
        raise ModelLoadError(
            f"{fields.where} says target_hidden_size = {width}, and its own hidden_size is "
            f"{config.hidden_size}: a drafter of another width than its target cannot be run"
        )
    return config


def tensor_name(name: str) -> str | None:
    """None: a copy of the target's, for training."""
    return None if name in _OF_THE_TARGET else name


def _anchor_predicts(fields: Fields, kind: str) -> bool:
    """As it says, or, in files older than the key, as many proposals as the block has inputs or one less."""
    if "sample_from_anchor" in fields:
        return fields.flag("sample_from_anchor")
    for method in fields.table("speculators_config").tables("proposal_methods"):
        if "speculative_tokens" in method and "block_size" in fields:
            return method.integer("speculative_tokens") >= fields.integer("block_size")
    return kind == "dspark"
