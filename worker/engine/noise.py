"""Counter-based noise: a draw is a pure function of its key, whenever and beside whomever it is made."""

from functools import cache

import torch
from torch import Tensor

from worker.engine.cpu.kernels import Kernels, kernels_for

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10 (Salmon et al., 2011): four 32-bit words, held in int64, for each counter and key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniforms(keys: Tensor, tokens: Tensor, stream: int) -> tuple[Tensor, Tensor]:
    """Two independent float64 draws in (0, 1) for each of tokens [N, K], of row keys [N, 3].

    A key is a seed, a sample's index, and a position; all are int64. By a kernel where there is one.
    """
    if tokens.device.type == "cpu" and (kernels := _kernels()) is not None:
        return kernels.uniforms(keys, tokens, stream)
    seeds, sample_indexes, positions = keys[:, :1], keys[:, 1:2], keys[:, 2:]
    streams = torch.full_like(tokens, stream)
    words = philox((tokens, positions, sample_indexes, streams), (seeds & _MASK, (seeds >> 32) & _MASK))
    return _to_unit(words[0], words[1]), _to_unit(words[2], words[3])


@cache
def _kernels() -> Kernels | None:
    return kernels_for(torch.float32, "cpu")


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low halves of a 32 x 32 bit product; int64 wraps around without losing bits."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK


def _to_unit(high: Tensor, low: Tensor) -> Tensor:
    """52 random bits, in the middle of their interval: with one more, the last would round to 1."""
    bits = ((high >> 6) << 26) | (low >> 6)
    return (bits.double() + 0.5) / 2.0**52
