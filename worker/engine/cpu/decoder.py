"""A model's decoder layers as one module: one call of a kernel instead of a dozen calls for each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.kernels import Kernels
from worker.engine.cpu.passes import LayerParts, Layers
from worker.engine.cpu.recognising import parts_of


class DecoderLayers(nn.Module):
    """Passes that the kernel does not take go through the layers one by one."""

    def __init__(
        self, layers: Sequence[nn.Module], parts: Sequence[LayerParts], kernels: Kernels, taps: Sequence[int]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.features = torch.empty(0)  # [T, m * d] of the last pass's tokens, of the m tapped layers
        self._taps = taps
        self._compiled = Layers(parts, 0, kernels, taps)
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
            x, self.features = self._compiled.run(hidden_states, position_embeddings, packed.buffers, table)
            return x
        outputs: list[Tensor] = []
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                packed=packed,
                **kwargs,
            )
            outputs.append(hidden_states)
        if self._taps:
            self.features = torch.cat([outputs[tap][0] for tap in self._taps], dim=-1)
        return hidden_states


def fuse_layers(model: nn.Module, kernels: Kernels, taps: Sequence[int] = ()) -> None:
    """Where all of a model's layers are of the kind that the kernel computes."""
    for module in list(model.modules()):
        layers = getattr(module, "layers", None)
        if not isinstance(layers, nn.ModuleList) or not len(layers):
            continue
        parts = [part for i, layer in enumerate(layers) if (part := parts_of(layer, i, kernels)) is not None]
        if len(parts) == len(layers) and len({part.sizes for part in parts}) == 1:
            module.layers = nn.ModuleList([DecoderLayers(list(layers), parts, kernels, taps)])
