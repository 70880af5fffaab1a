"""A pass through decoder layers, as the kernel in layers.h takes it."""

from collections.abc import Sequence
from ctypes import Array, Structure, addressof, byref, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from worker.engine.attention import Buffers
from worker.engine.cpu.kernels import Kernels, Scratch16, Weights, scratch_for
from worker.engine.cpu.products import PanelProduct


class LayerSizes(NamedTuple):
    """What all layers of a pass have in common."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Of what lies between a layer's products."""
        queries = self.heads * self.head_dim
        return self.hidden, queries + 2 * self.kv_heads * self.head_dim, queries, self.inner


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One layer."""

    sizes: LayerSizes
    attention_norm: Tensor
    mlp_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    qkv: PanelProduct
    output: PanelProduct
    gate_up: PanelProduct
    down: PanelProduct
    window: int | None
    scale: float
    is_causal: bool = True


class _Layer(Structure):
    """`Layer` in layers.h."""

    _fields_ = [
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", Weights),
        ("output", Weights),
        ("gate_up", Weights),
        ("down", Weights),
        ("window", c_int64),
        ("whole", c_int64),
        ("scale", c_float),
        ("tap", c_int64),
    ]


class _Pass(Structure):
    """`Pass` in layers.h."""

    _fields_ = [
        ("layers", c_void_p),
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("epsilon", c_float),
        ("tokens", c_int64),
        ("x", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("chunks", c_void_p),
        ("num_chunks", c_int64),
        ("positions", c_int64),
        ("normed", c_void_p),
        ("qkv", c_void_p),
        ("attended", c_void_p),
        ("activated", c_void_p),
        ("scratch", Scratch16),
        ("features", c_void_p),
        ("taps", c_int64),
    ]


class Layers:
    """Consecutive layers of equal sizes."""

    def __init__(
        self, parts: Sequence[LayerParts], first: int, kernels: Kernels, taps: Sequence[int] = ()
    ) -> None:
        """`first` is the number of the first of them in the model, and so of its cache.

        `taps` are those among them, from 0, whose outputs are the pass's features.
        """
        self._taps = len(taps)
        self._cached = slice(first, first + len(parts))
        self._parts = parts  # keeps alive what the pointers point to
        self._layers = (_Layer * len(parts))(
            *(_layer(part, taps.index(i) if i in taps else -1) for i, part in enumerate(parts))
        )
        self._run = kernels.run_int8_layers if parts[0].qkv.int8 else kernels.run_layers

    def run(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], buffers: Buffers, chunks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x [1, T, hidden] after the layers; rotation is cosine and sine [1, T, head_dim].

        And the features [T, taps * hidden].
        """
        sizes = self._parts[0].sizes
        x = x.contiguous().clone()
        cosine, sine = (part.contiguous() for part in rotation)
        tokens = x.shape[1]
        between = [x.new_empty(tokens, width) for width in sizes.widths]
        scratch, _alive = scratch_for(tokens, max(sizes.widths))
        features = x.new_empty(tokens, self._taps * sizes.hidden)
        keys, values = (addresses(part[self._cached]) for part in (buffers.keys, buffers.values))
        self._run(
            byref(
                _Pass(
                    *(addressof(self._layers), len(self._parts), *sizes, tokens),
                    *(x.data_ptr(), cosine.data_ptr(), sine.data_ptr()),
                    *(addressof(keys), addressof(values)),
                    *(chunks.data_ptr(), len(chunks), buffers.keys[0].shape[2]),
                    *(part.data_ptr() for part in between),
                    scratch,
                    *(features.data_ptr(), self._taps),
                )
            )
        )
        return x, features


def _layer(parts: LayerParts, tap: int) -> _Layer:
    norms = (parts.attention_norm, parts.mlp_norm, parts.query_norm, parts.key_norm)
    products = (parts.qkv, parts.output, parts.gate_up, parts.down)
    return _Layer(
        *map(_address, norms),
        *(product.weights for product in products),
        parts.window or 0,
        not parts.is_causal,
        parts.scale,
        tap,
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def addresses(tensors: Sequence[Tensor]) -> Array[c_void_p]:
    return (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
