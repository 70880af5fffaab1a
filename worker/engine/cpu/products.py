"""x W^T + b with the weights laid out once for how they are read: by our kernel, or else by oneDNN.

Our kernel was the faster for few tokens, where memory is the bound (half of oneDNN's time at 16, with matrix
tiles on both sides); from 64 tokens on the two are even.
"""

import platform
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from worker.engine.cpu.kernels import PANEL, Kernels, Weights

Product = Callable[[Tensor], Tensor]


class PanelProduct:
    """By our kernel: weights [columns / PANEL, depth / step, PANEL, step]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels, *, int8: bool = False) -> None:
        columns, self._own_depth = weight.shape
        scales = None
        if int8:
            weight, scales = to_int8(weight)
        step = kernels.int8_step if int8 else kernels.product_step
        multiple = kernels.int8_multiple if int8 else step
        depth = -(-self._own_depth // multiple) * multiple
        padded = nn.functional.pad(weight, (0, depth - self._own_depth, 0, -columns % PANEL))
        panels = kernels.pages.copy(padded.view(-1, PANEL, depth // step, step).transpose(1, 2))
        bias, scales = (_padded(vector, columns) for vector in (bias, scales))
        self._tensors = panels, bias, scales  # what the pointers point to
        addresses = (None if tensor is None else tensor.data_ptr() for tensor in self._tensors)
        self.weights = Weights(*addresses, columns, depth)
        self.columns, self.depth, self.int8 = columns, depth, int8
        self.is_padded = depth != self._own_depth
        self._multiply = kernels.int8_product if int8 else kernels.product

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_padded:
            x = nn.functional.pad(x, (0, self.depth - self._own_depth))
        return self._multiply(x.contiguous(), self.weights)


def can_multiply(dtype: torch.dtype) -> bool:
    """Whether there is any layout for weights of this dtype that is faster than torch's."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return cast(bool, torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def product_of(layers: Sequence[nn.Linear], kernels: Kernels | None, *, int8: bool = False) -> Product:
    """The outputs of layers with the same input, one after the other. With `int8` weights are rounded."""
    weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
    weight, bias = weight.detach(), _joined_bias(layers)
    if int8:
        if kernels and kernels.int8_step:
            return PanelProduct(weight, bias, kernels, int8=True)
        return _int8_product(weight, bias)
    if kernels and kernels.can_multiply and (kernels.has_tiles or not _has_tiles(kernels.dtype)):
        return PanelProduct(weight, bias, kernels)
    return _onednn_product(weight, bias)


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of -127 to 127, and the scale of each row, float32."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp(min=1e-30) / 127
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _int8_product(weight: Tensor, bias: Tensor | None) -> Product:
    """By torch, which multiplies in the dtype of x."""
    dtype, columns = weight.dtype, weight.shape[0]
    integers, scales = to_int8(weight)
    scales = scales.to(dtype)

    def product(x: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int8pack_mm(x.reshape(-1, x.shape[-1]), integers, scales)
        y = y.view(*x.shape[:-1], columns)
        return y if bias is None else y + bias

    return product


def _onednn_product(weight: Tensor, bias: Tensor | None) -> Product:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _padded(vector: Tensor | None, columns: int) -> Tensor | None:
    return None if vector is None else nn.functional.pad(vector, (0, -columns % PANEL))


def _has_tiles(dtype: torch.dtype) -> bool:
    """Matrix tiles (AMX), which oneDNN uses even where our kernel was compiled without them."""
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
