"""A pass through decoder layers, as the kernel in layers.cpp takes it."""

from collections.abc import Sequence
from ctypes import Array, Structure, addressof, byref, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from worker.engine.attention import Buffers
from worker.engine.cpu.kernels import Kernels
from worker.engine.cpu.products import PanelProduct


class LayerSizes(NamedTuple):
    """What all layers of a pass have in common."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float


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


class _Weights(Structure):
    _fields_ = [("panels", c_void_p), ("bias", c_void_p), ("columns", c_int64), ("depth", c_int64)]


class _Layer(Structure):
    """`Layer` in layers.cpp."""

    _fields_ = [
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", _Weights),
        ("output", _Weights),
        ("gate_up", _Weights),
        ("down", _Weights),
        ("window", c_int64),
        ("scale", c_float),
    ]


class _Pass(Structure):
    """`Pass` in layers.cpp."""

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
    ]


class Layers:
    """Consecutive layers of equal sizes."""

    def __init__(self, parts: Sequence[LayerParts], kernels: Kernels) -> None:
        self._parts = parts  # keeps alive what the pointers point to
        self._kernels = kernels
        self._layers = (_Layer * len(parts))(*map(_layer, parts))

    def run(self, x: Tensor, rotation: tuple[Tensor, Tensor], buffers: Buffers, chunks: Tensor) -> Tensor:
        """x [1, T, hidden] after the layers; rotation is cosine and sine [1, T, head_dim]."""
        sizes = self._parts[0].sizes
        x = x.contiguous().clone()
        cosine, sine = (part.contiguous() for part in rotation)
        tokens, group_width = x.shape[1], sizes.head_dim
        widths = (
            sizes.hidden,
            (sizes.heads + 2 * sizes.kv_heads) * group_width,
            sizes.heads * group_width,
            sizes.inner,
        )
        scratch = [x.new_empty(tokens, width) for width in widths]
        keys, values = _addresses(buffers.keys), _addresses(buffers.values)
        self._kernels.run_layers(
            byref(
                _Pass(
                    *(addressof(self._layers), len(self._parts), *sizes, tokens),
                    *(x.data_ptr(), cosine.data_ptr(), sine.data_ptr()),
                    *(addressof(keys), addressof(values)),
                    *(chunks.data_ptr(), len(chunks), buffers.keys[0].shape[2]),
                    *(part.data_ptr() for part in scratch),
                )
            )
        )
        return x


def _layer(parts: LayerParts) -> _Layer:
    norms = (parts.attention_norm, parts.mlp_norm, parts.query_norm, parts.key_norm)
    products = (parts.qkv, parts.output, parts.gate_up, parts.down)
    return _Layer(*map(_address, norms), *map(_weights, products), parts.window or 0, parts.scale)


def _weights(product: PanelProduct) -> _Weights:
    return _Weights(_address(product.panels), _address(product.bias), product.columns, product.depth)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor]) -> Array[c_void_p]:
    return (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
