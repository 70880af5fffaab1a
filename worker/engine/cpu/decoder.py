"""Consecutive decoder layers as one module: one call of a kernel instead of a dozen calls for each."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.kernels import Kernels
from worker.engine.cpu.passes import LayerParts, Layers
from worker.engine.cpu.recognising import parts_of


class DecoderLayers(nn.Module):
    """Passes that the kernel does not take go through the layers one by one."""

    def __init__(
        self, layers: Sequence[nn.Module], parts: Sequence[LayerParts], first: int, kernels: Kernels
    ) -> None:
        """`first` is the number of the first of these layers in the model."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._compiled = Layers(parts, first, kernels)
        self._dtype = kernels.dtype

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        packed: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        table = packed.table if isinstance(packed, CompiledPass) and attention_mask is None else None
        if table is not None and position_embeddings[0].dtype == self._dtype:
            return self._compiled.run(hidden_states, position_embeddings, packed.buffers, table)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                packed=packed,
                **kwargs,
            )
        return hidden_states


def fuse_layers(model: nn.Module, kernels: Kernels, taps: Collection[int] = ()) -> None:
    """Where all of a model's layers are of the kind that the kernel computes; a tapped one ends a module."""
    for module in list(model.modules()):
        layers = getattr(module, "layers", None)
        if not isinstance(layers, nn.ModuleList) or not len(layers):
            continue
        parts = [part for i, layer in enumerate(layers) if (part := parts_of(layer, i, kernels)) is not None]
        if len(parts) == len(layers) and len({part.sizes for part in parts}) == 1:
            modules = list(layers)
            starts = sorted({0, *(tap + 1 for tap in taps if tap + 1 < len(layers))})
            module.layers = nn.ModuleList(
                DecoderLayers(modules[start:end], parts[start:end], start, kernels)
                for start, end in zip(starts, [*starts[1:], len(layers)], strict=True)
            )
