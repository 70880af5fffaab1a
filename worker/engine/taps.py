"""Features that a drafter looks at: the raw outputs of some of the target's decoder layers, in each pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from worker.engine.cpu.decoder import DecoderLayers
from worker.engine.errors import EngineError


class Taps:
    """Notes what came out of the layers in the last pass."""

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        """Of a model that is prepared for its taps; raises EngineError where it has no such layer."""
        self._outputs: list[Tensor] = [torch.empty(0)] * len(layers)
        modules = _decoder_layers(model)
        self._fused = modules[0] if modules and isinstance(modules[0], DecoderLayers) else None
        if self._fused is not None:
            modules = list(self._fused.layers)
        for place, layer in enumerate(layers):
            if not 0 <= layer < len(modules):
                raise EngineError(
                    f"layer {layer} of the target cannot be tapped: it has 0 to {len(modules) - 1}"
                )
            if self._fused is None:
                modules[layer].register_forward_hook(self._noting(place))

    def features(self) -> Tensor:
        """[T, m * d] of the pass's tokens, the taps side by side."""
        if self._fused is not None:
            return self._fused.features
        return torch.cat(self._outputs, dim=-1)[0]

    def _noting(self, place: int) -> Any:
        def note(_module: nn.Module, _arguments: Any, output: Tensor | tuple[Tensor, ...]) -> None:
            self._outputs[place] = output[0] if isinstance(output, tuple) else output

        return note


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers, or what computes all of them at once."""
    for module in model.modules():
        layers = getattr(module, "layers", None)
        if isinstance(layers, nn.ModuleList):
            return list(layers)
    return []
