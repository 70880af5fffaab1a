"""Weights of 8 bits: near the model's own output, lossless under speculation, smaller; the rest by name."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.worker.engine.cpu.test_decoder import is_fused, last_logits
from tests.worker.engine.cpu.test_prepare import model_of
from tests.worker.engine.tiny import Kind, save_tiny_model, tiny_model
from worker.engine import Engine, EngineError, FolderModel, Pair, Sampling
from worker.engine.cpu.kernels import kernels_for
from worker.engine.cpu.prepare import prepare
from worker.engine.cpu.products import product_of, to_int8
from worker.engine.memory import check_fits
from worker.engine.quantizing import weight_bytes
from worker.engine.types import Quantization

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (48, 33), (576, 160)])
def test_products_equal_those_of_the_rounded_weights(
    dtype: torch.dtype, compiled: bool, depth: int, columns: int
):
    torch.manual_seed(depth)
    layer = nn.Linear(depth, columns, dtype=dtype)
    integers, scales = to_int8(layer.weight.detach())
    rounded = integers.double() * scales.double()[:, None]
    product = product_of([layer], kernels_for(dtype, "cpu") if compiled else None, int8=True)

    for tokens in (1, 3, 13, 97):
        x = torch.randn(tokens, depth).to(dtype)
        right = x.double() @ rounded.T + layer.bias.double()
        tolerance = 2e-4 if dtype == torch.float32 and compiled else 2e-2
        torch.testing.assert_close(product(x).double(), right, rtol=tolerance, atol=tolerance)


def test_what_is_not_a_number_stays_one_in_its_row():
    product = product_of([nn.Linear(32, 32)], kernels_for(torch.float32, "cpu"), int8=True)
    x = torch.randn(3, 32)
    x[0, 5], x[1, 6] = torch.nan, torch.inf

    y = product(x)

    assert not y[:2].isfinite().any()
    assert y[2].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "inner"), [("llama", 128), ("llama", 96), ("qwen3", 64)])
def test_a_model_answers_nearly_as_with_its_own_weights(kind: Kind, inner: int, dtype: torch.dtype):
    model = model_of(kind, dtype, max_position_embeddings=512, intermediate_size=inner)
    before = last_logits(model, dtype, [1, 6, 293])

    prepare(model, dtype, "cpu", int8=True)

    kernels = kernels_for(dtype, "cpu")
    if kernels is not None and kernels.can_multiply and kernels.int8_step:
        assert is_fused(model) == (inner % kernels.int8_multiple == 0)  # what tiles take whole
    after = last_logits(model, dtype, [1, 6, 293])
    assert (after - before).abs().max() < 0.05 * before.abs().max()
    assert not torch.equal(after, before)
    torch.testing.assert_close(last_logits(model, dtype, [300]), after, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_speculation_changes_nothing(kind: Kind, tmp_path: Path):
    save_tiny_model(tmp_path, kind, hidden_size=64, head_dim=32, dtype=torch.float32)
    prompts = ["the thing in the thing in the", "on or on or on", "a"]
    outputs = [
        [
            result.token_ids
            for result in Engine(
                Pair(FolderModel(tmp_path), method, dtype="float32", quantization="int8")
            ).generate(prompts, Sampling(max_tokens=24))
        ]
        for method in ("none", "prompt_lookup")
    ]
    assert outputs[0] == outputs[1]


def test_the_memory_that_a_pair_needs_counts_8_bits(tmp_path: Path):
    model = tiny_model("llama", dtype=torch.float32, tie_word_embeddings=True)
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    head = cast(Any, model).lm_head.weight.numel()
    whole = weight_bytes(model, None, 4)

    assert whole == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(model, "int8", 4) == whole - 3 * linear + 4 * head  # the embedding itself stays
    assert weight_bytes(model, "bitsandbytes-4bit", 4) == whole - 7 * (linear - head) // 2

    save_tiny_model(tmp_path)
    whole, smaller = (
        check_fits(Pair(FolderModel(tmp_path), dtype="float32", quantization=wanted)).target_weights
        for wanted in (None, "int8")
    )
    assert smaller < whole


@pytest.mark.parametrize(
    ("wanted", "own", "dtype", "said"),
    [
        ("bitsandbytes-4bit", None, "bfloat16", 'runs on CUDA only, and the device of .* is cpu: use "int8"'),
        ("int8", None, "float64", "for float32, bfloat16 and float16 on a CPU"),
        (None, "gptq", "float32", "is quantized by gptq, which runs on CUDA only, and the device is cpu"),
        (None, "awq", "float32", "is quantized by awq"),
        (
            "int8",
            "bitsandbytes",
            "float32",
            'quantized already, by bitsandbytes: take quantization = "int8"',
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    wanted: Quantization | None, own: str | None, dtype: str, said: str, tmp_path: Path
):
    save_tiny_model(tmp_path)
    if own:
        file = tmp_path / "config.json"
        settings = {"quant_method": own, "bits": 4, "group_size": 128, "load_in_4bit": True}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": settings}))

    with pytest.raises(EngineError, match=said) as raised:
        Engine(Pair(FolderModel(tmp_path), dtype=dtype, quantization=wanted))  # pyright: ignore[reportArgumentType] (one of DType)
    assert str(tmp_path) in str(raised.value)
