"""Each public packaging, as it is published but tiny, is read into the network that it describes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.worker.engine.dspark.drafters import VOCAB, WIDTH, random_network, target_facts, tensors_of, write
from tests.worker.engine.dspark.packaged import (
    DEEPSPEC,
    LIQUID,
    NESTED,
    READ,
    SPECFORGE,
    SPECULATED,
    SPECULATORS,
    ZLAB,
    load_config,
)
from worker.engine.dspark.checkpoints import load_network


def test_deepspec_with_tables_of_its_own(tmp_path: Path) -> None:
    network, target = random_network(READ), target_facts()
    write(tmp_path, DEEPSPEC, tensors_of(network, with_tables=True))

    loaded = load_network(tmp_path, target)

    assert loaded.config == READ
    assert torch.equal(loaded.embed_tokens.weight, network.embed_tokens.weight)
    assert torch.equal(loaded.lm_head.weight, network.lm_head.weight)


def test_a_stored_copy_of_the_targets_tables_is_not_kept_twice(tmp_path: Path) -> None:
    network, target = random_network(READ), target_facts()
    network.use_tokens_of(target.embeddings, target.head)
    write(tmp_path, DEEPSPEC, tensors_of(network, with_tables=True))

    loaded = load_network(tmp_path, target)

    assert loaded.embed_tokens.weight.data_ptr() == target.embeddings.data_ptr()
    assert loaded.lm_head.weight.data_ptr() == target.head.data_ptr()


def test_deepspec_without_a_markov_head_is_dflash(tmp_path: Path) -> None:
    config = DEEPSPEC | {"markov_rank": 0, "enable_confidence_head": False}
    del config["markov_head_type"], config["confidence_head_with_markov"]
    plain = replace(READ, markov_rank=0, has_confidence=False, confidence_with_markov=False)

    assert load_config(tmp_path, config, plain) == plain


def test_specforge_in_several_files_with_heads_in_another_module(tmp_path: Path) -> None:
    network = random_network(READ)
    tensors = {f"logit_head.{key}" if "head." in key else key: t for key, t in tensors_of(network).items()}
    (tmp_path / "config.json").write_text(json.dumps(SPECFORGE))
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))

    loaded = load_network(tmp_path, target_facts())

    assert loaded.config == NESTED
    assert all(torch.equal(loaded.state_dict()[key], tensor) for key, tensor in tensors_of(network).items())


def test_specforge_says_for_all_layers_whether_a_block_is_causal(tmp_path: Path) -> None:
    assert load_config(tmp_path, SPECFORGE | {"is_causal": True}) == replace(READ, is_causal=True)


def test_liquids_heads_rotate_neighbours_and_propose_nine(tmp_path: Path) -> None:
    expected = replace(NESTED, block_size=9, rope_theta=1e7, rope_interleaved=True)

    assert load_config(tmp_path, LIQUID, expected) == expected
    assert expected.block_inputs == 9


def test_zlabs_anchor_is_no_proposal(tmp_path: Path) -> None:
    expected = replace(
        NESTED,
        block_size=15,
        rope_theta=1e7,
        markov_rank=0,
        has_confidence=False,
        confidence_with_markov=False,
        anchor_predicts=False,
    )

    assert load_config(tmp_path, ZLAB, expected) == expected
    assert expected.block_inputs == 16


def test_speculators_counts_layers_by_their_inputs_and_tokens_by_offset(tmp_path: Path) -> None:
    network, target = random_network(SPECULATED), target_facts()
    ids = torch.tensor([3, 5, 6, 7, 11, 12, 20, 21, 22, 30, 38, 39])
    tensors = tensors_of(network, with_tables=True) | {
        "d2t": ids - torch.arange(12),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, value=True),
        "verifier_lm_head.weight": torch.zeros(12, WIDTH),
        "verifier_norm.weight": torch.zeros(WIDTH),
    }
    del tensors["embed_tokens.weight"]
    write(tmp_path, SPECULATORS, tensors)

    loaded = load_network(tmp_path, target)

    assert loaded.config == SPECULATED
    assert loaded.token_ids.tolist() == ids.tolist()
    assert torch.equal(loaded.lm_head.weight, network.lm_head.weight)
    assert torch.equal(loaded.embed_tokens.weight, target.embeddings)
    assert loaded.markov_head is not None
    assert loaded.markov_head.markov_w1.weight.shape == (VOCAB, 6)
    assert loaded.markov_head.markov_w2.weight.shape == (12, 6)


def test_a_head_that_is_not_stored_is_the_draft_vocabularys_rows_of_the_targets(tmp_path: Path) -> None:
    load_config(tmp_path, SPECULATORS, SPECULATED)
    target = target_facts()

    loaded = load_network(tmp_path, target)

    assert torch.equal(loaded.lm_head.weight, target.head[torch.arange(12) * 2 + 1])


@pytest.mark.parametrize(
    ("says", "proposes", "kind", "predicts"),
    [
        (True, 7, "dspark", True),  # what it says
        (False, 8, "dflash", False),
        (None, 8, "dspark", True),  # older files: as many proposals as the block has inputs, or one less
        (None, 7, "dspark", False),
        (None, 7, "dflash", False),
        (None, None, "dspark", True),  # the config class's default
        (None, None, "dflash", False),
    ],
)
def test_whether_the_anchors_output_is_a_proposal(
    says: bool | None, proposes: int | None, kind: str, predicts: bool, tmp_path: Path
) -> None:
    methods = [] if proposes is None else [{"proposal_type": "greedy", "speculative_tokens": proposes}]
    named = {**SPECULATORS["speculators_config"], "proposal_methods": methods}
    changes = {"sample_from_anchor": says, "speculators_model_type": kind, "speculators_config": named}

    read = load_config(tmp_path, SPECULATORS | changes, SPECULATED)

    assert read.anchor_predicts is predicts
    assert read.block_size == (8 if predicts else 7)
    assert read.block_inputs == 8


@pytest.mark.parametrize(("non_causal", "causal"), [(False, [True, False]), (True, [False, False])])
def test_sliding_layers_are_causal_in_the_block_unless_said(
    non_causal: bool, causal: list[bool], tmp_path: Path
) -> None:
    layers = SPECULATORS["transformer_layer_config"] | {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 2048,
        "use_sliding_window": True,
    }
    changes = {"transformer_layer_config": layers, "sliding_window_non_causal": non_causal}

    read = load_config(tmp_path, SPECULATORS | changes, SPECULATED)

    assert [read.window_of(layer) for layer in range(2)] == [2048, None]
    assert [read.is_causal_in(layer) for layer in range(2)] == causal


def test_rope_theta_is_found_where_older_and_newer_configs_keep_it(tmp_path: Path) -> None:
    newer = DEEPSPEC | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    del newer["rope_theta"], newer["rope_scaling"]

    assert load_config(tmp_path, newer).rope_theta == 5e5
    assert load_config(tmp_path, DEEPSPEC).rope_theta == 1e6
