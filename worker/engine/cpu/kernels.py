"""The compiled kernels as functions of tensors."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from worker.engine.cache import LayerShape
from worker.engine.cpu.compiling import compiled_library
from worker.engine.cpu.pages import HugePages

LANES = 16  # dimensions must be multiples of it
PANEL = 32  # columns of a product whose weights lie together
LARGEST_KEY = 256
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class _Strides(Structure):
    _fields_ = [("token", c_int64), ("head", c_int64)]


class _Attention(Structure):
    """`Call` in attention.cpp."""

    _fields_ = [
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("query_strides", _Strides),
        ("key_strides", _Strides),
        ("value_strides", _Strides),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("output", c_void_p),
        ("chunks", c_void_p),
        ("num_chunks", c_int64),
        ("kv_heads", c_int64),
        ("group", c_int64),
        ("positions", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("window", c_int64),
        ("whole", c_int64),
        ("scale", c_float),
    ]


class Weights(Structure):
    """Of a product; `Weights` in panels.h."""

    _fields_ = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("columns", c_int64),
        ("depth", c_int64),
    ]


class Scratch16(Structure):
    """In panels.h."""

    _fields_ = [("x", c_void_p), ("scales", c_void_p)]


class _Walk(Structure):
    """`Walk` in choosing.cpp."""

    _fields_ = [
        ("logits", c_void_p),
        ("rows", c_int64),
        ("positions", c_int64),
        ("embeddings", c_void_p),
        ("weights", Weights),
        ("token_ids", c_void_p),
        ("anchors", c_void_p),
        ("tokens", c_void_p),
        ("embedded", c_void_p),
        ("scratch", Scratch16),
    ]


class Context(Structure):
    """In storing.cpp."""

    _fields_ = [
        ("keys_values", c_void_p),
        ("norms", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("slots", c_void_p),
        ("at", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("tokens", c_int64),
        ("layers", c_int64),
        ("heads", c_int64),
        ("dim", c_int64),
        ("capacity", c_int64),
        ("epsilon", c_float),
    ]


class Kernels:
    """For one dtype."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        name = _DTYPES[dtype]
        self.dtype = dtype
        self.pages = HugePages()
        self._attend = _function(library, f"attend_{name}", [POINTER(_Attention)])
        self._rms_norm = _function(
            library, f"rms_norm_{name}", [c_void_p, c_int64, c_void_p, c_float, c_int64, c_int64, c_void_p]
        )
        self._silu_and_multiply = _function(
            library, f"silu_and_multiply_{name}", [c_void_p, c_int64, c_int64, c_void_p]
        )
        strides = [c_int64, c_int64]
        sizes = [c_int64, c_int64, c_int64]
        self._rotate = _function(
            library, f"rotate_{name}", [c_void_p, *strides, c_void_p, c_void_p, *sizes, c_void_p]
        )

        self.store_context = _function(library, f"store_context_{name}", [POINTER(Context)])
        self._largest = _function(library, f"largest_{name}", [c_void_p, *sizes[:2], c_void_p, c_void_p])
        self._candidates = _function(
            library,
            f"candidates_{name}",
            [c_void_p, *sizes[:2], c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p],
        )

        self._uniforms = _function(library, "uniforms", [c_void_p, c_void_p, *sizes, c_void_p, c_void_p])

        self.product_step = 2 if dtype == torch.bfloat16 else 1
        self.can_multiply = hasattr(library, f"product_{name}")
        product = [c_void_p, c_int64, POINTER(Weights), Scratch16, c_void_p]
        self.has_tiles = self.can_multiply and dtype == torch.bfloat16 and bool(library.has_tiles())
        # Processors may multiply integers and not bfloat16.
        self.int8_step = int(library.int8_step()) if hasattr(library, "int8_step") else 0
        if self.can_multiply:
            self._product = _function(library, f"product_{name}", product)
            self.run_layers = _function(library, f"run_layers_{name}", [c_void_p])
            self._walk = _function(library, f"walk_{name}", [POINTER(_Walk)])
        if self.int8_step:
            self._int8_product = _function(library, f"product_int8_{name}", product)
            self._int8_walk = _function(library, f"walk_int8_{name}", [POINTER(_Walk)])
            self.run_int8_layers = _function(library, f"run_layers_int8_{name}", [c_void_p])

    @property
    def int8_multiple(self) -> int:
        """What the depth of a product of integers is padded to."""
        return LANES * self.int8_step

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        chunks: Tensor,
        scale: float,
        window: int | None,
        output: Tensor,
        *,
        is_causal: bool = True,
    ) -> None:
        """Store keys and values [H_kv, T, D] in the layer's cache; the output [T, H, D] of chunks' queries.

        `chunks` is int64 [N, 4]: slot, start, offset in the pass, length. If not causal, a query sees its
        whole chunk.
        """
        call = _Attention(
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            (query.stride(1), query.stride(0)),
            (key.stride(1), key.stride(0)),
            (value.stride(1), value.stride(0)),
            keys.data_ptr(),
            values.data_ptr(),
            output.data_ptr(),
            chunks.data_ptr(),
            len(chunks),
            keys.shape[1],
            query.shape[0] // keys.shape[1],
            keys.shape[2],
            keys.shape[3],
            values.shape[3],
            window or 0,
            not is_causal,
            scale,
        )
        self._attend(byref(call))

    def product(self, x: Tensor, weights: Weights) -> Tensor:
        """Contiguous x [..., depth] by weights in panels."""
        output = torch.empty((*x.shape[:-1], weights.columns), dtype=x.dtype)
        rows = x.numel() // weights.depth
        self._product(x.data_ptr(), rows, byref(weights), Scratch16(), output.data_ptr())
        return output

    def int8_product(self, x: Tensor, weights: Weights) -> Tensor:
        output = torch.empty((*x.shape[:-1], weights.columns), dtype=x.dtype)
        rows = x.numel() // weights.depth
        scratch, _alive = scratch_for(rows, weights.depth)
        self._int8_product(x.data_ptr(), rows, byref(weights), scratch, output.data_ptr())
        return output

    def largest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row of contiguous x [N, columns], float32, and where it first is; NaN if any is NaN."""
        values, places = torch.empty(len(x)), torch.empty(len(x), dtype=torch.int64)
        self._largest(x.data_ptr(), *x.shape, values.data_ptr(), places.data_ptr())
        return values, places

    def candidates(
        self, x: Tensor, highest: Tensor, temperatures: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each row of contiguous x [N, columns] its largest: scores and places [N, count], descending.

        And the weight of all others [N], float64: the sum of exp(score), a score being (x - highest) /
        temperature. `highest` and `temperatures` are float32 [N]. Places of a score of -inf mean nothing.
        """
        highest, temperatures = highest.contiguous(), temperatures.contiguous()
        scores = torch.empty((len(x), count))
        places = torch.empty((len(x), count), dtype=torch.int64)
        others = torch.empty(len(x), dtype=torch.float64)
        given = (x.data_ptr(), *x.shape, highest.data_ptr(), temperatures.data_ptr(), count)
        self._candidates(*given, scores.data_ptr(), places.data_ptr(), others.data_ptr())
        return scores, places, others

    def uniforms(self, keys: Tensor, tokens: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        """Two draws for each of tokens [N, K], by keys [N, 3] and stream, as `noise.uniforms` says."""
        keys, tokens = keys.contiguous(), tokens.contiguous()
        first, second = (torch.empty(tokens.shape, dtype=torch.float64) for _ in range(2))
        given = (keys.data_ptr(), tokens.data_ptr(), *tokens.shape, stream)
        self._uniforms(*given, first.data_ptr(), second.data_ptr())
        return first, second

    def walk(
        self,
        logits: Tensor,
        embeddings: Tensor,
        weights: Weights,
        token_ids: Tensor,
        anchors: Tensor,
        *,
        int8: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Tokens [R, G], the most likely one after the other, and embeddings [R, G, rank] of those before.

        `logits` [R, G, columns] is contiguous; to each position's is added what the token before it makes
        likely: its embedding by the weights. -1 where the largest is not finite.
        """
        rows, positions, _ = logits.shape
        tokens = torch.empty((rows, positions), dtype=torch.int64)
        embedded = torch.empty((positions, rows, embeddings.shape[1]), dtype=embeddings.dtype)
        addresses = (part.data_ptr() for part in (token_ids, anchors, tokens, embedded))
        scratch, _alive = scratch_for(rows, weights.depth)
        call = _Walk(logits.data_ptr(), rows, positions, embeddings.data_ptr(), weights, *addresses, scratch)
        (self._int8_walk if int8 else self._walk)(byref(call))
        return tokens, embedded.transpose(0, 1)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Over the last dimension of x, whose rows lie evenly apart."""
        output = torch.empty(x.shape, dtype=x.dtype)
        dim = x.shape[-1]
        self._rms_norm(
            x.data_ptr(), dim, weight.data_ptr(), epsilon, x.numel() // dim, dim, output.data_ptr()
        )
        return output

    def silu_and_multiply(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of contiguous [..., gate and up]."""
        dim = gate_up.shape[-1] // 2
        output = torch.empty((*gate_up.shape[:-1], dim), dtype=gate_up.dtype)
        self._silu_and_multiply(gate_up.data_ptr(), output.numel() // dim, dim, output.data_ptr())
        return output

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """x [1, H, T, D] by cosine and sine, contiguous [1, T, D]."""
        _, heads, tokens, dim = x.shape
        output = torch.empty((1, tokens, heads, dim), dtype=x.dtype)
        self._rotate(
            x.data_ptr(),
            x.stride(2),
            x.stride(1),
            cosine.data_ptr(),
            sine.data_ptr(),
            tokens,
            heads,
            dim,
            output.data_ptr(),
        )
        return output.transpose(1, 2)


def scratch_for(rows: int, depth: int) -> tuple[Scratch16, tuple[Tensor, Tensor]]:
    """Of a product of int8 weights by so many rows, as deep; and the tensors that it points to."""
    integers, scales = torch.empty(rows * depth, dtype=torch.int16), torch.empty(rows)
    return Scratch16(integers.data_ptr(), scales.data_ptr()), (integers, scales)


def kernels_for(dtype: torch.dtype, device: str) -> Kernels | None:
    """None where there are none: another device, another dtype, no compiler."""
    if torch.device(device).type != "cpu" or dtype not in _DTYPES:
        return None
    library = compiled_library()
    return Kernels(library, dtype) if library else None


def attention_kernels(shapes: Sequence[LayerShape], dtype: torch.dtype, device: str) -> Kernels | None:
    """None where some layer's heads are of a size that the attention kernel does not take."""
    fits = all(
        s.key_dim % LANES == 0 and s.value_dim % LANES == 0 and s.key_dim <= LARGEST_KEY
        for s in shapes
        if s.attends
    )
    return kernels_for(dtype, device) if fits else None


def rounding_error(dtype: torch.dtype) -> float:
    """Of the largest output: by no more do equal formulas differ that sum in another order."""
    return 1e-4 if dtype == torch.float32 else 2e-2


def _function(library: ctypes.CDLL, name: str, arguments: list[Any]) -> Callable[..., None]:
    function = getattr(library, name)
    function.argtypes = arguments
    function.restype = None
    return function
