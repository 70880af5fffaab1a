"""Layers of Llama's kind run as one call, with the same result; other layers stay as they are."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.worker.engine.cpu.test_prepare import DTYPES, model_of
from tests.worker.engine.tiny import Kind
from worker.engine.cache import Chunk, LayerShape
from worker.engine.contiguous import ContiguousCache
from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.decoder import DecoderLayers
from worker.engine.cpu.kernels import kernels_for
from worker.engine.cpu.prepare import prepare

TOKENS = [5 + i % 300 for i in range(300)]


def is_fused(model: PreTrainedModel) -> bool:
    return any(isinstance(module, DecoderLayers) for module in model.modules())


def last_logits(model: PreTrainedModel, dtype: torch.dtype, lengths: Sequence[int]) -> Tensor:
    """After all TOKENS, given in chunks of these lengths, beside another row."""
    cache = ContiguousCache([LayerShape(2, 32, 32)] * 2, 2, 512, dtype, "cpu")
    kernels = kernels_for(dtype, "cpu")
    assert kernels is not None, "these tests need a C++ compiler"
    start = 0
    output = torch.empty(0)
    for length in lengths:
        chunks = [Chunk(1, start, TOKENS[start : start + length], 1), Chunk(0, start, [7], 1)]
        cache.reserve(chunks)
        layout = CompiledPass(cache, chunks, kernels)
        with torch.inference_mode():
            output = cast(Any, model)(
                input_ids=torch.tensor([[*chunks[0].token_ids, 7]]),
                position_ids=layout.positions[None],
                use_cache=False,
                packed=layout,
            ).logits[0, length - 1]
        start += length
    assert start == len(TOKENS)
    return output


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    ],
    ids=["llama", "biases", "qwen3", "window"],
)
def test_layers_of_llamas_kind_answer_as_one(kind: Kind, config: dict[str, Any], dtype: torch.dtype):
    kernels = kernels_for(dtype, "cpu")
    if kernels is None or not kernels.can_multiply:
        pytest.skip("this CPU does not multiply in this dtype")
    model = model_of(kind, dtype, max_position_embeddings=512, **config)
    steps = [1, 6, 13, 100, 1, 179]
    before = last_logits(model, dtype, steps)

    prepare(model, dtype, "cpu")

    assert is_fused(model)
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(last_logits(model, dtype, steps), before, rtol=tolerance, atol=tolerance)
    # One chunk is longer than the attention kernel takes: its pass goes through the layers one by one.
    torch.testing.assert_close(last_logits(model, dtype, [300]), before, rtol=tolerance, atol=tolerance)


def test_layers_of_another_kind_stay():
    model = model_of("gemma3", torch.float32)

    prepare(model, torch.float32, "cpu")

    assert not is_fused(model)


def test_layers_that_look_alike_but_answer_otherwise_stay():
    model = model_of("llama", torch.float32)
    layer = cast(Any, model).model.layers[1]
    own = layer.forward

    def otherwise(*args: Any, **kwargs: Any) -> Tensor:
        return own(*args, **kwargs) * 1.01

    layer.forward = otherwise

    prepare(model, torch.float32, "cpu")

    assert not is_fused(model)
