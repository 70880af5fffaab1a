"""What `save_network` writes, `load_network` reads back: DeepSpec's layout."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.worker.engine.dspark.drafters import CONFIG, TARGET_NAME, random_network, target_facts
from worker.engine.dspark.checkpoints import load_network, save_network
from worker.engine.dspark.config import DSparkConfig


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, draft_vocab_size=12),
        replace(CONFIG, markov_kind="gated", rope_interleaved=True),
        replace(CONFIG, markov_kind="rnn", has_confidence=False),
        replace(
            CONFIG, markov_rank=0, has_confidence=False, anchor_predicts=False, confidence_with_markov=False
        ),
        replace(CONFIG, window=16, is_causal=None, unwindowed=frozenset({1})),
        replace(CONFIG, is_causal=True),
    ],
    ids=["vanilla", "reduced", "gated", "rnn", "dflash", "windows", "causal"],
)
def test_a_network_comes_back_as_it_was_written(config: DSparkConfig, tmp_path: Path) -> None:
    network, target = random_network(config), target_facts()
    network.use_tokens_of(target.embeddings, target.head)

    save_network(network, tmp_path, TARGET_NAME)
    loaded = load_network(tmp_path, target)

    assert loaded.config == config
    assert torch.equal(loaded.token_ids, network.token_ids)
    weights = network.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in loaded.state_dict().items())
    assert not loaded.training


def test_what_is_the_targets_is_not_written(tmp_path: Path) -> None:
    network = random_network(replace(CONFIG, draft_vocab_size=12))

    save_network(network, tmp_path, TARGET_NAME)

    written = load_file(tmp_path / "model.safetensors")
    assert not {"embed_tokens.weight", "lm_head.weight"} & written.keys()
    assert (torch.arange(12) + written["d2t"]).tolist() == list(range(1, 24, 2))
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["architectures"] == ["Qwen3DSparkModel"]
    assert described["target_layer_ids"] == [1, 2, 4]


def test_weights_take_the_dtype_of_the_target_and_share_its_tables(tmp_path: Path) -> None:
    save_network(random_network(dtype=torch.float32), tmp_path, TARGET_NAME)
    target = target_facts(torch.bfloat16)

    loaded = load_network(tmp_path, target)

    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.bfloat16}
    assert loaded.embed_tokens.weight.data_ptr() == target.embeddings.data_ptr()
    assert loaded.lm_head.weight.data_ptr() == target.head.data_ptr()
