"""Linear layers with weights laid out for oneDNN once: two to three times faster for a few tokens."""

import platform
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


def can_pack(dtype: torch.dtype) -> bool:
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return cast(bool, torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class Product:
    """x W^T + b, of one layer or of several with the same input, one after the other."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self._bias = _joined_bias(layers)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x, self._weight, self._bias, "none", [], "")


class PackedLinear(nn.Module):
    """In the place of a linear layer. The original weight is freed with the layer, unless tied to another."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._product = Product([layer])

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x)


class SharedProduct:
    """One product for layers that a model calls one by one with the same tensor, as q, k and v."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._product = Product(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, x: Tensor, index: int) -> Tensor:
        part = self._parts[index] if x is self._input else None
        if part is None:
            self._input = x
            self._parts = list(torch.split(self._product(x), self._sizes, dim=-1))
            part = cast(Tensor, self._parts[index])
        self._parts[index] = None  # handed out once: the caller may change it
        if not any(other is not None for other in self._parts):
            self._input = None
        return part


class PartOfProduct(nn.Module):
    """In the place of a linear layer whose product is computed with others'."""

    def __init__(self, shared: SharedProduct, index: int, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._shared, self._index = shared, index

    def forward(self, x: Tensor) -> Tensor:
        return self._shared.part(x, self._index)


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
