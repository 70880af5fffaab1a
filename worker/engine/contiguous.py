"""The cache that suits a CPU: one contiguous slot a row, in buffers that grow with rows and positions.

Smaller pages would have to be gathered for each step, and a copied prefix costs next to nothing there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from worker.engine.attention import Pass
from worker.engine.cache import CacheFull, Chunk, LayerShape, Layout, bytes_per_token
from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.kernels import attention_kernels

_SLOT_CHUNK = 4
_POSITION_CHUNK = 256


class ContiguousCache:
    """Per layer, keys and values as [slots, kv_heads, positions, dim]."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        max_slots: int,
        max_positions: int,
        dtype: torch.dtype,
        device: str,
        max_bytes: int | None = None,
    ) -> None:
        """`max_bytes`: of all buffers together; None: as much as all slots need at full length."""
        self._max_slots = max_slots
        self._max_positions = max_positions
        most = max_slots * max_positions
        limit = most if max_bytes is None else max_bytes // bytes_per_token(shapes, dtype)
        self._max_tokens = min(most, limit)
        self._held = [0] * max_slots  # positions
        self._slots = self._positions = 0
        self._device = device
        self._kernels = attention_kernels(shapes, dtype, device)
        # Zeros, not garbage: a masked position still takes part in the products, and 0 * NaN is NaN.
        self.keys = [torch.zeros(0, s.kv_heads, 0, s.key_dim, dtype=dtype, device=device) for s in shapes]
        self.values = [torch.zeros(0, s.kv_heads, 0, s.value_dim, dtype=dtype, device=device) for s in shapes]

    @property
    def is_compiled(self) -> bool:
        """Whether kernels read and write it."""
        return self._kernels is not None

    @property
    def longest(self) -> int:
        return min(self._max_positions, self._max_tokens)

    def fits(self, ends: Mapping[int, int]) -> bool:
        slots, positions = self._extent(ends)
        return slots * positions <= self._max_tokens

    def reserve(self, chunks: Sequence[Chunk]) -> None:
        ends = {chunk.slot: chunk.end for chunk in chunks}
        if max(ends) >= self._slots or max(ends.values()) > self._positions:
            self._grow(*self._extent(ends))
        for slot, end in ends.items():
            self._held[slot] = max(self._held[slot], end)

    def write(self, layer: int, slots: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        self.keys[layer][slots, :, positions] = key
        self.values[layer][slots, :, positions] = value

    def layout(self, chunks: Sequence[Chunk]) -> Layout:
        if self._kernels:
            return CompiledPass(self, chunks, self._kernels)
        return Pass(self, chunks, self._device)

    def share(self, source: int, target: int, length: int) -> None:
        if length and source != target:
            self._grow(*self._extent({target: length}))
            for buffer in (*self.keys, *self.values):
                buffer[target, :, :length] = buffer[source, :, :length]
        self._held[target] = length

    def move(self, source: int, target: int, length: int) -> None:
        self.share(source, target, length)

    def free(self, slot: int) -> None:
        self._held[slot] = 0

    def wipe(self, slot: int) -> None:
        for buffer in (*self.keys, *self.values):
            if slot < buffer.shape[0]:
                buffer[slot].zero_()
        self.free(slot)

    def trim(self, slots: int) -> None:
        self._held[slots:] = [0] * (self._max_slots - slots)
        slots = min(self._slots, _round_up(slots, _SLOT_CHUNK))
        self._slots = slots
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                if old.shape[0] > slots:
                    buffers[layer] = old[:slots].clone()

    def _extent(self, ends: Mapping[int, int]) -> tuple[int, int]:
        """The slots and positions that hold all that is held, and so much more."""
        slots = 1 + max(max(ends), max((slot for slot, held in enumerate(self._held) if held), default=0))
        return slots, max(*self._held, *ends.values())

    def _grow(self, slots: int, positions: int) -> None:
        """In large steps, if there is room for them; where there is none, what is not needed goes."""
        if slots <= self._slots and positions <= self._positions:
            return
        if slots * positions > self._max_tokens:
            raise CacheFull(f"{slots} rows of up to {positions} tokens")
        more_slots = max(self._slots, min(_round_up(slots, _SLOT_CHUNK), self._max_slots))
        more_positions = max(self._positions, min(_round_up(positions, _POSITION_CHUNK), self._max_positions))
        if more_slots * more_positions <= self._max_tokens:
            slots, positions = more_slots, more_positions
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                if old.shape[0] == slots and old.shape[2] == positions:
                    continue  # resized before, when memory ran out at a later layer
                new = old.new_zeros(slots, old.shape[1], positions, old.shape[3])
                kept = old[:slots, :, :positions]
                new[: kept.shape[0], :, : kept.shape[2]] = kept
                buffers[layer] = new
        self._slots, self._positions = slots, positions  # only now: what every layer has


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
