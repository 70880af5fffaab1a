"""What takes the place of linear layers. Their own weights are freed with them, unless tied to others."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from worker.engine.cpu.kernels import Kernels
from worker.engine.cpu.products import product_of


class PackedLinear(nn.Module):
    def __init__(self, layer: nn.Linear, kernels: Kernels | None, *, int8: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.product = product_of([layer], kernels, int8=int8)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class SharedProduct:
    """One product for layers that a model calls one by one with the same tensor, as q, k and v."""

    def __init__(self, layers: Sequence[nn.Linear], kernels: Kernels | None, *, int8: bool = False) -> None:
        self.product = product_of(layers, kernels, int8=int8)
        self._sizes = [layer.out_features for layer in layers]
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, x: Tensor, index: int) -> Tensor:
        part = self._parts[index] if x is self._input else None
        if part is None:
            self._input = x
            self._parts = list(torch.split(self.product(x), self._sizes, dim=-1))
            part = cast(Tensor, self._parts[index])
        self._parts[index] = None  # handed out once: the caller may change it
        if not any(other is not None for other in self._parts):
            self._input = None
        return part


class PartOfProduct(nn.Module):
    """A layer whose product is computed with others'."""

    def __init__(self, shared: SharedProduct, index: int, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.shared, self._index = shared, index

    def forward(self, x: Tensor) -> Tensor:
        return self.shared.part(x, self._index)
