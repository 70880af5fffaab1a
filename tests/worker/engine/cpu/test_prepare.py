"""A prepared model computes what it did before, and frees the weights it no longer reads."""

import gc
import weakref
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.worker.engine.tiny import Kind, tiny_model
from worker.engine.cache import Chunk, LayerShape
from worker.engine.contiguous import ContiguousCache
from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.kernels import kernels_for
from worker.engine.cpu.linear import PackedLinear
from worker.engine.cpu.prepare import prepare
from worker.engine.cpu.products import product_of

KINDS: list[Kind] = ["llama", "qwen3", "gemma3"]
DTYPES = [torch.float32, torch.bfloat16]
TOKENS = list(range(5, 45))


def model_of(kind: Kind, dtype: torch.dtype, **config: Any) -> PreTrainedModel:
    model = tiny_model(kind, dtype=dtype, hidden_size=64, head_dim=32, **config)
    with torch.no_grad():  # weights this small keep bfloat16's rounding small in the logits too
        for parameter in model.parameters():
            parameter.mul_(0.3 if parameter.dim() > 1 else 1)
    model.set_attn_implementation("specmill")
    return model


def logits(model: PreTrainedModel, dtype: torch.dtype) -> Tensor:
    cache = ContiguousCache([LayerShape(2, 32, 32)] * 2, 4, 256, dtype, "cpu")
    kernels = kernels_for(dtype, "cpu")
    assert kernels is not None, "these tests need a C++ compiler"
    chunks = [Chunk(1, 0, TOKENS[:30], 30), Chunk(0, 0, TOKENS[30:], 10)]
    cache.reserve(chunks)
    layout = CompiledPass(cache, chunks, kernels)
    with torch.inference_mode():
        return cast(Any, model)(
            input_ids=torch.tensor([TOKENS]),
            position_ids=layout.positions[None],
            use_cache=False,
            packed=layout,
        ).logits[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_prepared_model_has_the_same_logits(kind: Kind, dtype: torch.dtype):
    model = model_of(kind, dtype)
    before = logits(model, dtype)

    prepare(model, dtype, "cpu")

    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(logits(model, dtype), before, rtol=tolerance, atol=tolerance)
    assert not any(type(module) is nn.Linear for module in model.modules())


def test_float64_is_left_as_it_is():
    model = tiny_model("llama", dtype=torch.float64)
    before = list(model.modules())

    prepare(model, torch.float64, "cpu")

    assert [id(module) for module in model.modules()] == [id(module) for module in before]


def test_replaced_weights_are_freed_and_tied_embeddings_kept():
    model = model_of("llama", torch.float32, tie_word_embeddings=True)
    layer = cast(Any, model).model.layers[0]
    replaced = [weakref.ref(layer.self_attn.q_proj.weight), weakref.ref(layer.mlp.up_proj.weight)]
    embedding = model.get_input_embeddings().weight

    del layer
    prepare(model, torch.float32, "cpu")
    gc.collect()

    assert [reference() for reference in replaced] == [None, None]
    assert model.get_input_embeddings().weight is embedding
    assert type(cast(Any, model).lm_head) is PackedLinear


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "oneDNN"])
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (50, 33), (63, 1), (576, 160)])
def test_products_equal_torchs(dtype: torch.dtype, compiled: bool, depth: int, columns: int):
    torch.manual_seed(depth)
    layers = [nn.Linear(depth, columns, bias=bias, dtype=dtype) for bias in (True, False)]
    product = product_of(layers, kernels_for(dtype, "cpu") if compiled else None)

    for tokens in (1, 2, 3, 4, 12, 13, 25, 97, 200):
        x = torch.randn(1, tokens, depth).to(dtype)
        right = torch.cat([layer.double()(x.double()) for layer in layers], dim=-1)
        for layer in layers:
            layer.to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(product(x).double(), right, rtol=tolerance, atol=tolerance)
