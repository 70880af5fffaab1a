"""SpecForge, Liquid's heads for LFM2, and z-lab's DFlash: what is not Qwen3's is in `dflash_config`.

SpecForge tags DSpark (`projector_type`) and may repeat its keys at the top; Liquid has no tag, and its heads
rotate neighbours (`rope_is_neox_style`); in z-lab's DFlash the anchor's output is no proposal.
"""

from worker.engine.dspark.checkpoints.backbone import Trained, read_config
from worker.engine.dspark.checkpoints.fields import Fields
from worker.engine.dspark.config import DSparkConfig
from worker.engine.errors import ModelLoadError

DSPARK = ("DSparkDraftModel", "Lfm2DSparkDraftModel")
DFLASH = ("DFlashDraftModel",)


def read(fields: Fields) -> DSparkConfig:
    merged = Fields({**fields.values, **fields.table("dflash_config").values}, fields.where)
    named = "dspark" if set(fields.words("architectures")) & set(DSPARK) else "dflash"
    projector = merged.word("projector_type", named)
    _check(merged, projector)
    return read_config(
        backbone=fields,
        heads=merged,
        trained=Trained(
            taps=merged.integers("target_layer_ids"),
            anchor_predicts=merged.flag("sample_from_anchor", projector == "dspark"),
            is_causal=merged.flag("is_causal") if "is_causal" in merged else None,
            num_target_layers=merged.integer("num_target_layers"),
            target=None,
        ),
    )


def tensor_name(name: str) -> str:
    """SpecForge's first checkpoints have the heads inside another module."""
    return name.removeprefix("logit_head.")


def _check(merged: Fields, projector: str) -> None:
    """Refuse variants of SpecForge that are other networks."""
    if projector not in ("dspark", "dflash"):
        raise merged.refusal("projector_type", "dspark or dflash")
    if merged.word("attention_mode", "gqa") not in ("gqa", "mha"):
        raise merged.refusal("attention_mode", "gqa or mha")
    for key in ("attention_modes", "shift_label", "pure_draft_prefix_len"):
        if merged.values.get(key):
            raise merged.refusal(key, "nothing of the kind")
    if projector == "dflash" and merged.integer("markov_rank", 0) and "sample_from_anchor" not in merged:
        raise ModelLoadError(
            f"{merged.where} is of a DFlash with a Markov head, and does not say whether the anchor's output "
            "is a proposal: add sample_from_anchor, true or false"
        )
