"""x W^T + b with the weights laid out once for how they are read: by our kernel, or else by oneDNN.

Our kernel was the faster for few tokens, where memory is the bound; at 256 tokens the two are even.
"""

import platform
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from worker.engine.cpu.kernels import PANEL, Kernels

Product = Callable[[Tensor], Tensor]


class PanelProduct:
    """By our kernel."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        self.columns, self._own_depth = weight.shape
        step = kernels.product_step
        self.depth = -(-self._own_depth // step) * step
        padded = nn.functional.pad(weight, (0, self.depth - self._own_depth, 0, -self.columns % PANEL))
        panels = padded.view(-1, PANEL, self.depth // step, step).transpose(1, 2)
        self.panels = kernels.pages.copy(panels)  # [columns / PANEL, depth / step, PANEL, step]
        self.bias = None if bias is None else nn.functional.pad(bias, (0, -self.columns % PANEL))
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        if self.depth != self._own_depth:
            x = nn.functional.pad(x, (0, self.depth - self._own_depth))
        return self._kernels.product(x.contiguous(), self.panels, self.bias, self.columns)


def can_multiply(dtype: torch.dtype) -> bool:
    """Whether there is any layout for weights of this dtype that is faster than torch's."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return cast(bool, torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def product_of(layers: Sequence[nn.Linear], kernels: Kernels | None) -> Product:
    """The outputs of layers with the same input, one after the other."""
    weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
    weight, bias = weight.detach(), _joined_bias(layers)
    if kernels and kernels.can_multiply and not _has_tiles(kernels.dtype):
        return PanelProduct(weight, bias, kernels)
    return _onednn_product(weight, bias)


def _onednn_product(weight: Tensor, bias: Tensor | None) -> Product:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _has_tiles(dtype: torch.dtype) -> bool:
    """Matrix tiles (AMX), which oneDNN uses and our kernel does not."""
    return dtype == torch.bfloat16 and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    """Zeros for the layers that have none beside others that do."""
    biases = [cast(Tensor | None, layer.bias) for layer in layers]
    if not any(bias is not None for bias in biases):
        return None
    filled = [
        layer.weight.new_zeros(layer.out_features) if bias is None else bias
        for layer, bias in zip(layers, biases, strict=True)
    ]
    return torch.cat(filled).detach()
