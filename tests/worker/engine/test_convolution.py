"""A short convolution of ours answers as the model's own, wherever its row is in a pass."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from tests.worker.engine.tiny import tiny_model
from worker.engine.attention import Pass
from worker.engine.cache import Chunk, LayerShape
from worker.engine.contiguous import ContiguousCache
from worker.engine.convolution import ShortConvolution, replace_convolutions

WIDTH = 16


def convolution(length: int, dtype: torch.dtype, *, bias: bool) -> Lfm2ShortConv:
    torch.manual_seed(length)
    config = Lfm2Config(
        hidden_size=WIDTH, conv_L_cache=length, conv_bias=bias, num_hidden_layers=1, layer_types=["conv"]
    )
    return Lfm2ShortConv(config, 0).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "bias"), [(1, False), (3, False), (4, True)])
@torch.inference_mode()
def test_rows_in_parts_are_what_they_are_whole(length: int, bias: bool, dtype: torch.dtype):
    own = convolution(length, dtype, bias=bias)
    ours = ShortConvolution(own)
    texts = [torch.randn(1, 12, WIDTH, dtype=dtype) for _ in range(2)]
    cache = ContiguousCache([LayerShape.of_inputs(WIDTH)], 4, 20, dtype, "cpu")
    slots = (2, 0)

    said: list[list[Tensor]] = [[], []]
    for (start, end), (other_start, other_end) in [((0, 5), (0, 1)), ((5, 6), (1, 3)), ((6, 12), (3, 12))]:
        spans = [(start, end), (other_start, other_end)]
        rejected = torch.randn(1, 2, WIDTH, dtype=dtype)  # after each row's part, and not counted later
        chunks = [Chunk(slot, s, [0] * (e - s + 2), 0) for slot, (s, e) in zip(slots, spans, strict=True)]
        cache.reserve(chunks)
        parts = [part for text, (s, e) in zip(texts, spans, strict=True) for part in (text[:, s:e], rejected)]
        x = torch.cat(parts, 1)
        y = ours(x, packed=Pass(cache, chunks, "cpu"))
        said[0].append(y[:, : end - start])
        said[1].append(y[:, end - start + 2 : -2])

    for text, answers in zip(texts, said, strict=True):
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(torch.cat(answers, 1), own(text), rtol=tolerance, atol=tolerance)


class OtherFormula(Lfm2ShortConv):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        return 2 * super().forward(hidden_states, **kwargs)


def activated(module: nn.Module) -> None:
    module.conv = nn.Sequential(cast(nn.Module, module.conv), nn.SiLU())


def strided(module: nn.Module) -> None:
    cast(nn.Conv1d, module.conv).stride = (2,)


def of_another_class(module: nn.Module) -> None:
    module.__class__ = OtherFormula


@pytest.mark.parametrize("change", [activated, strided, of_another_class])
def test_what_is_of_another_kind_stays_as_it_is(change: Callable[[nn.Module], None]):
    model = tiny_model("lfm2", layers=3)
    layers = cast(Any, model).model.layers
    change(layers[0].conv)

    replace_convolutions(model)

    assert isinstance(layers[0].conv, Lfm2ShortConv)
    assert isinstance(layers[2].conv, ShortConvolution)
