"""Keys and values of all rows: one contiguous slot a row, in buffers that grow with rows and positions.

Lengths are kept by the rows: what lies beyond a row's length is dead, and is overwritten when its turn comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

_SLOT_CHUNK = 4
_POSITION_CHUNK = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores per token."""

    kv_heads: int
    key_dim: int
    value_dim: int


class KeyValueCache:
    """Per layer, keys and values as [slots, kv_heads, positions, dim]."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        max_slots: int,
        max_positions: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.max_slots = max_slots
        self.max_positions = max_positions
        self._slots: int = 0
        self._positions: int = 0
        # Zeros, not garbage: a masked position still takes part in the products, and 0 * NaN is NaN.
        self.keys = [torch.zeros(0, s.kv_heads, 0, s.key_dim, dtype=dtype, device=device) for s in shapes]
        self.values = [torch.zeros(0, s.kv_heads, 0, s.value_dim, dtype=dtype, device=device) for s in shapes]

    def reserve(self, slots: int, positions: int) -> None:
        """Make room for that many slots of that many positions."""
        if slots <= self._slots and positions <= self._positions:
            return
        slots = max(self._slots, min(_round_up(slots, _SLOT_CHUNK), self.max_slots))
        positions = max(self._positions, min(_round_up(positions, _POSITION_CHUNK), self.max_positions))
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                if old.shape[0] >= slots and old.shape[2] >= positions:
                    continue  # grown before, when memory ran out at a later layer
                new = old.new_zeros(slots, old.shape[1], positions, old.shape[3])
                new[: old.shape[0], :, : old.shape[2]] = old[:slots]
                buffers[layer] = new
        self._slots, self._positions = slots, positions  # only now: what every layer has

    def trim(self, slots: int) -> None:
        """Give back the memory of all slots but the first so many."""
        slots = min(self._slots, _round_up(slots, _SLOT_CHUNK))
        self._slots = slots
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                if old.shape[0] > slots:
                    buffers[layer] = old[:slots].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's first positions to another slot. A row without any may be where no buffer is yet."""
        if not length:
            return
        for buffer in (*self.keys, *self.values):
            buffer[target, :, :length] = buffer[source, :, :length]

    def wipe(self, slot: int) -> None:
        """Zero a slot that may hold NaN, which would outlive its row through masked positions."""
        for buffer in (*self.keys, *self.values):
            if slot < buffer.shape[0]:
                buffer[slot].zero_()


class Slots:
    """Which slots are taken; the lowest free one is given out first, so that those in use stay together."""

    def __init__(self) -> None:
        self._taken: list[bool] = []

    def take(self) -> int:
        if False not in self._taken:
            self._taken.append(False)
        slot = self._taken.index(False)
        self._taken[slot] = True
        return slot

    def free(self, slot: int) -> None:
        self._taken[slot] = False
        while self._taken and not self._taken[-1]:
            self._taken.pop()

    @property
    def lowest_hole(self) -> int | None:
        """A free slot below one in use."""
        return self._taken.index(False) if False in self._taken else None


class Holder(Protocol):
    """What lives in a slot, with its first `cached` positions."""

    slot: int
    cached: int


def compact(slots: Slots, cache: KeyValueCache, holders: Sequence[Holder]) -> None:
    """Move holders from the highest slots into holes: a pass over the slots in use computes no dead one."""
    for holder in sorted(holders, key=lambda holder: holder.slot, reverse=True):
        hole = slots.lowest_hole
        if hole is None or hole > holder.slot:
            return
        cache.move(holder.slot, hole, holder.cached)
        slots.free(holder.slot)
        holder.slot = slots.take()


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
