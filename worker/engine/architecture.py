"""What the engine needs of a model's architecture, found by asking: a tiny pass shows its layers."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from worker.engine.cache import LayerShape, layer_index
from worker.engine.errors import EngineError

_LAYER_TYPES = {"full_attention", "sliding_attention", "conv"}
# Rotary embeddings that follow the longest position in the pass: one row would change its neighbours.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


class _Probe:
    """Stands in for a pass: notes what each layer asks for and answers zeros."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}
        self.windows: dict[int, int | None] = {}

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,  # noqa: ARG002 (part of the protocol)
        window: int | None,
    ) -> Tensor:
        if getattr(module, "is_causal", True) is False:
            raise EngineError("its attention is not causal")
        self._note(module, LayerShape(key.shape[1], key.shape[-1], value.shape[-1]), window)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:
        self._note(module, LayerShape.of_inputs(inputs.shape[-1]), None)
        return inputs.new_zeros(inputs.shape[1], length, inputs.shape[-1])

    def _note(self, module: nn.Module, shape: LayerShape, window: int | None) -> None:
        layer = layer_index(module)
        if layer in self.layers or getattr(module, "is_kv_shared_layer", False):
            raise EngineError("its layers share keys and values, which this engine does not store")
        self.layers[layer], self.windows[layer] = shape, window


def inspect_model(model: PreTrainedModel, name: str, context_limit: int) -> list[LayerShape]:
    """What each layer caches; raises EngineError, naming the model, where the engine would be wrong."""
    config = cast(Any, model.config).get_text_config()
    try:
        _check_rope(config, context_limit)
        return _probe_layers(model, config)
    except EngineError as error:
        raise EngineError(
            f"{name} ({type(model).__name__}) cannot be served: {error}. Choose another model for this pair"
        ) from error


def _probe_layers(model: PreTrainedModel, config: Any) -> list[LayerShape]:
    unknown = set(getattr(config, "layer_types", None) or []) - _LAYER_TYPES
    if unknown or getattr(model, "_is_stateful", False):
        kinds = ", ".join(sorted(unknown)) or "a recurrent state"
        raise EngineError(
            f"it has {kinds} beside attention, whose state cannot be rolled back to an accepted position "
            "(of a row's past only keys and values and the last inputs of short convolutions are kept)"
        )
    probe = _Probe()
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    model(input_ids=tokens, position_ids=positions, use_cache=False, packed=probe)
    expected: int = config.num_hidden_layers
    if sorted(probe.layers) != list(range(expected)):
        raise EngineError(
            f"{len(probe.layers)} of its {expected} layers use transformers' attention interface "
            "or are short convolutions as LFM2's; all must"
        )
    for layer, kind in enumerate(getattr(config, "layer_types", None) or []):
        if (kind == "sliding_attention") != (probe.windows[layer] is not None):
            raise EngineError(
                f"layer {layer} is of type {kind} but asks for the window {probe.windows[layer]}"
            )
    return [probe.layers[layer] for layer in range(expected)]


def _check_rope(config: Any, context_limit: int) -> None:
    parameters = cast(dict[str, Any], getattr(config, "rope_parameters", None) or {})
    by_layer_type = [p for p in parameters.values() if isinstance(p, Mapping)]
    for rope in cast(list[dict[str, Any]], by_layer_type) or [parameters]:
        kind = rope.get("rope_type")
        if kind not in _LENGTH_DEPENDENT_ROPE:
            continue
        original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if context_limit > original:
            raise EngineError(
                f"its {kind} position embedding changes with the longest row beyond {original} tokens "
                f"(set context_limit to at most {original})"
            )
