"""A drafter that cannot be run, or not with this target, is refused by name before it serves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.dspark.drafters import (
    TARGET_NAME,
    VOCAB,
    WIDTH,
    random_network,
    target_facts,
    tensors_of,
    write,
)
from tests.worker.engine.dspark.packaged import (
    DEEPSPEC,
    LIQUID,
    SPECFORGE,
    SPECULATED,
    SPECULATORS,
    ZLAB,
    load_config,
)
from worker.engine.dspark.checkpoints import load_network
from worker.engine.errors import ModelLoadError


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (SPECULATORS | {"speculators_model_type": "eagle3"}, "'eagle3' of speculators: dspark and dflash"),
        (DEEPSPEC | {"architectures": ["LlamaForCausalLMEagle3"]}, "is a LlamaForCausalLMEagle3: DSpark and"),
        (DEEPSPEC | {"architectures": ["Gemma4DSparkModel"]}, "is a Gemma4DSparkModel"),
        (SPECFORGE | {"dflash_config": {"projector_type": "domino"}}, "projector_type = 'domino': dspark or"),
        (SPECFORGE | {"dflash_config": {"attention_mode": "mla"}}, "attention_mode = 'mla': gqa or mha"),
        (ZLAB | {"markov_rank": 6}, "add sample_from_anchor"),
        (SPECFORGE | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'.*only plain RoPE"),
        (LIQUID | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'.*only plain RoPE"),
        (DEEPSPEC | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (DEEPSPEC | {"layer_types": ["full_attention", "linear_attention"]}, r"type \['linear_attention'\]"),
        (DEEPSPEC | {"markov_head_type": "lstm"}, "'lstm': vanilla, gated or rnn was expected"),
        (DEEPSPEC | {"mask_token_id": VOCAB}, "mask_token_id 40, outside its vocabulary of 40"),
        (DEEPSPEC | {"mask_token_id": None}, "does not say mask_token_id: an integer was expected"),
        (DEEPSPEC | {"block_size": "7"}, "block_size = '7': an integer was expected"),
        (ZLAB | {"dflash_config": ZLAB["dflash_config"] | {"block_size": 1}}, "= 1: room for one proposal"),
        (DEEPSPEC | {"target_layer_ids": [1, 2, 5]}, r"taps the layers \[1, 2, 5\].*0 to 4 can be tapped"),
        (SPECULATORS | {"aux_hidden_state_layer_ids": [0, 2, 3]}, r"taps the layers \[-1, 1, 2\]"),
        (SPECULATORS | {"target_hidden_size": 32}, "target_hidden_size = 32.*hidden_size is 24"),
        (DEEPSPEC | {"num_hidden_layers": "two"}, "does not describe a Qwen3 network"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    config: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=complaint) as caught:
        load_config(tmp_path, config)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("config", "changes", "difference"),
    [
        (DEEPSPEC, {"hidden_size": 32}, r"\(hidden size 24 instead of 32\)"),
        (DEEPSPEC, {"num_layers": 7}, r"\(layers 6 instead of 7\)"),
        (SPECFORGE, {"embeddings": torch.zeros(41, WIDTH)}, r"\(vocabulary 40 instead of 41\)"),
        (SPECULATORS, {"name": "acme/other@main"}, "trained for acme/tiny, not for acme/other@main"),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_both_names(
    config: dict[str, Any], changes: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    write(tmp_path, config, tensors_of(random_network()))
    target = target_facts(**changes)

    with pytest.raises(ModelLoadError, match=difference) as caught:
        load_network(tmp_path, target, "acme/drafter@main")

    assert "acme/drafter@main" in str(caught.value)
    assert target.name in str(caught.value)


@pytest.mark.parametrize("name", ["acme/tiny@v2", "ACME/Tiny@main", "/models/tiny", "tiny_package:tiny.gguf"])
def test_names_that_cannot_differ_in_the_model_are_accepted(name: str, tmp_path: Path) -> None:
    load_config(tmp_path, SPECULATORS, SPECULATED)

    assert load_network(tmp_path, target_facts(name=name)).config.target != TARGET_NAME


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"fc.weight": None}, "lacks 1 tensors, fc.weight among them"),
        ({"layers.0.self_attn.q_proj.bias": torch.zeros(32)}, "1 tensors, layers.0.self_attn.q_proj.bias"),
        ({"norm.weight": torch.zeros(9)}, r"norm.weight of the drafter .* has shape \[9\]: .* says \[24\]"),
        ({"d2t": None}, "proposes 12 of 40 tokens, but has no tensor d2t"),
        ({"d2t": torch.arange(11)}, r"d2t of the drafter .* has shape \[11\]: \[12\] was expected"),
        ({"d2t": torch.arange(12) * 3 + 1}, "must hold offsets"),  # the target's ids themselves
        ({"d2t": -torch.arange(12)}, "12 different tokens"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, "t2d and d2t .* name different tokens"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    change: dict[str, torch.Tensor | None], complaint: str, tmp_path: Path
) -> None:
    tensors = tensors_of(random_network(SPECULATED)) | {"d2t": torch.arange(12)} | change
    write(tmp_path, SPECULATORS, {key: tensor for key, tensor in tensors.items() if tensor is not None})

    with pytest.raises(ModelLoadError, match=complaint):
        load_network(tmp_path, target_facts())


def test_a_folder_without_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no drafter in .*: config\.json and \*\.safetensors"):
        load_network(tmp_path, target_facts())

    (tmp_path / "config.json").write_text(json.dumps(DEEPSPEC))
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors, and nothing else is read"):
        load_network(tmp_path, target_facts())

    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelLoadError, match="cannot read the weights"):
        load_network(tmp_path, target_facts())

    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"cannot read config\.json"):
        load_network(tmp_path, target_facts())
