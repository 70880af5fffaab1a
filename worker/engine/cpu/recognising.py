"""Which decoder layers are of Llama's kind: known by their modules, and believed once they answer alike.

`prepare` has replaced the modules by ours before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from worker.engine.cache import Chunk
from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.kernels import LARGEST_KEY, PANEL, Kernels, rounding_error
from worker.engine.cpu.layers import FusedRMSNorm, GatedMlp
from worker.engine.cpu.linear import PackedLinear, PartOfProduct
from worker.engine.cpu.passes import LayerParts, Layers, LayerSizes
from worker.engine.cpu.products import PanelProduct

_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = ("q_norm", "k_norm")
_TRIED = (Chunk(0, 0, (0, 0, 0), 0), Chunk(1, 1, (0, 0), 0))  # five tokens of two rows


def parts_of(layer: nn.Module, index: int, kernels: Kernels) -> LayerParts | None:
    """The layer in parts, or None where it is of another kind or size."""
    if _names(layer) != _CHILDREN:
        return None
    modules = cast(Any, layer)
    attention, mlp = modules.self_attn, modules.mlp
    names = _names(attention) - _PROJECTIONS
    if names not in (set[str](), set(_HEAD_NORMS)) or not isinstance(attention.q_proj, PartOfProduct):
        return None
    if not isinstance(attention.o_proj, PackedLinear) or not isinstance(mlp, GatedMlp) or mlp.kernels is None:
        return None
    norms = [modules.input_layernorm, modules.post_attention_layernorm]
    norms += [getattr(attention, name) for name in _HEAD_NORMS if name in names]
    products = attention.q_proj.shared.product, attention.o_proj.product, mlp.gate_up, mlp.down
    panels = [product for product in products if isinstance(product, PanelProduct)]
    if not all(isinstance(norm, FusedRMSNorm) for norm in norms) or len({n.epsilon for n in norms}) > 1:
        return None
    if len(panels) < len(products) or len({product.int8 for product in panels}) > 1:
        return None
    if any(product.is_padded for product in panels):
        return None
    qkv, output, gate_up, down = panels
    head_dim = cast(int, attention.head_dim)
    hidden, inner = output.columns, down.depth
    if any(size % PANEL for size in (hidden, inner, head_dim)) or head_dim > LARGEST_KEY:
        return None
    if attention.layer_idx != index:
        return None
    trial = _Trial(hidden, attention.k_proj.out_features // head_dim, head_dim, index, kernels)
    right = trial.own(layer)
    heads = attention.q_proj.out_features // head_dim
    query_norm, key_norm = (norm.weight for norm in norms[2:]) if names else (None, None)
    parts = LayerParts(
        LayerSizes(hidden, inner, heads, trial.kv_heads, head_dim, norms[0].epsilon),
        norms[0].weight,
        norms[1].weight,
        query_norm,
        key_norm,
        qkv,
        output,
        gate_up,
        down,
        trial.window,
        head_dim**-0.5 if trial.scaling is None else trial.scaling,
    )
    return parts if trial.agrees(parts, right) else None


@dataclass(slots=True)
class _Buffers:
    keys: list[Tensor]
    values: list[Tensor]


class _Trial:
    """The same tokens through a layer's own code and through the kernel."""

    def __init__(self, hidden: int, kv_heads: int, head_dim: int, index: int, kernels: Kernels) -> None:
        generator = torch.Generator().manual_seed(index)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(kernels.dtype)

        self._x = random(1, 5, hidden) / 64  # small, so that what the layer adds to it can be told
        self._rotation = random(1, 5, head_dim), random(1, 5, head_dim)
        self._keys, self._values = (random(2, kv_heads, 4, head_dim) for _ in range(2))
        self._index, self._kernels = index, kernels
        self.kv_heads = kv_heads
        self.window: int | None = None
        self.scaling: float | None = None

    def own(self, layer: nn.Module) -> Sequence[Tensor]:
        """What the layer adds, and its keys and values; notes what it asks of attention."""
        buffers = self._buffers(self._index + 1)
        self._pass = CompiledPass(buffers, _TRIED, self._kernels)
        y = layer(self._x, position_embeddings=self._rotation, packed=self)
        return y - self._x, buffers.keys[0], buffers.values[0]

    def agrees(self, parts: LayerParts, right: Sequence[Tensor]) -> bool:
        buffers = self._buffers(1)
        table = CompiledPass(buffers, _TRIED, self._kernels).table
        assert table is not None
        y, _ = Layers([parts], 0, self._kernels).run(self._x, self._rotation, buffers, table)
        tolerance = rounding_error(self._kernels.dtype)
        ours = y - self._x, buffers.keys[0], buffers.values[0]
        return all(
            bool((a.float() - b.float()).abs().max() <= tolerance * b.float().abs().max())
            for a, b in zip(ours, right, strict=True)
        )

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        self.scaling, self.window = scaling, window
        return self._pass.attend(module, query, key, value, scaling, window)

    def _buffers(self, layers: int) -> _Buffers:
        return _Buffers([self._keys.clone()] * layers, [self._values.clone()] * layers)


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
