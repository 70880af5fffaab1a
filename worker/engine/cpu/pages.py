"""Memory for weights in huge pages: a stream of weights is read a third faster than from pages of 4 KiB."""

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_BLOCK = 64 * 2**20
_ALIGNMENT = 64  # a line of the cache


class HugePages:
    """Gives out parts of large blocks, each of which is freed with the last of its parts."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous and here."""
        place = self._empty(tensor.shape, tensor.dtype)
        return place.copy_(tensor)

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = prod(shape) * dtype.itemsize
        if self._used + size > len(self._block):
            self._block, self._used = _new_block(max(size, _BLOCK)), 0
        part = self._block[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return part.view(dtype).view(*shape)


def _new_block(size: int) -> Tensor:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.uint8)
