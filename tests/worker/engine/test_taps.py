"""Features: what transformers calls hidden_states[l + 1], of each token of a pass, whatever runs layers."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.worker.engine.tiny import Kind, save_tiny_model
from worker.engine.attention import ATTENTION
from worker.engine.cache import Chunk
from worker.engine.errors import EngineError
from worker.engine.loading import load_model
from worker.engine.target import CachedModel
from worker.engine.types import FolderModel

TOKENS = [5 + 3 * i % 90 for i in range(24)]
LAYERS = 4
CONFIG = {
    "num_hidden_layers": LAYERS, "hidden_size": 64, "intermediate_size": 96, "head_dim": 32,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_window_layers": LAYERS,
}  # fmt: skip


def hidden_states(folder: Path, layer: int) -> Tensor:
    model = load_model(FolderModel(folder), "float32", "cpu", attention="sdpa").model
    with torch.inference_mode():
        output = cast(Any, model)(torch.tensor([TOKENS]), output_hidden_states=True)
    return output.hidden_states[layer + 1][0]


def tapped(folder: Path, taps: tuple[int, ...]) -> CachedModel:
    loaded = load_model(FolderModel(folder), "float32", "cpu", attention=ATTENTION)
    return CachedModel(loaded, 2, 64, taps=taps)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("taps", [(0,), (0, 2), (1, 2)], ids=str)
def test_features_are_the_raw_outputs_of_the_tapped_layers(tmp_path: Path, kind: Kind, taps: tuple[int, ...]):
    save_tiny_model(tmp_path, kind, **CONFIG)
    model = tapped(tmp_path, taps)
    expected = torch.cat([hidden_states(tmp_path, tap) for tap in taps], dim=-1)

    features: list[Tensor] = []
    for start, end in ((0, 13), (13, 14), (14, 24)):  # a prompt, a step, a verify block; beside another row
        with torch.inference_mode():
            model.forward([Chunk(1, start, TOKENS[start:end], 1), Chunk(0, start, [7], 1)])
        features.append(model.features()[:-1])

    torch.testing.assert_close(torch.cat(features), expected, rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path):
    save_tiny_model(tmp_path, "llama", **CONFIG)
    with pytest.raises(EngineError, match="layer 9 of the target cannot be tapped"):
        tapped(tmp_path, (1, 9))


def test_taps_change_no_logits(tmp_path: Path):
    save_tiny_model(tmp_path, "llama", **CONFIG)
    chunks = [Chunk(0, 0, TOKENS, 3)]
    with torch.inference_mode():
        assert torch.equal(tapped(tmp_path, ()).forward(chunks), tapped(tmp_path, (0, 2)).forward(chunks))
