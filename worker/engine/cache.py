"""What the engine asks of a cache of keys and values, whatever its layout; and who is in which slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one row, at positions start, start + 1, ... of its slot."""

    slot: int
    start: int
    token_ids: Sequence[int]
    num_logits: int  # logits are wanted for so many of its last tokens

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores per token: keys and values, or in the place of keys what it has to remember."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def of_inputs(cls, width: int) -> "LayerShape":
        """Of a layer whose state is its row's last few inputs."""
        return cls(1, width, 0)

    @property
    def attends(self) -> bool:
        return self.value_dim > 0


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """All layers together."""
    return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize


class Attends(Protocol):
    """What `packed` is, the argument that travels through the model to each layer.

    A layer has all of a row's past from here, by position: a row is rolled back by its length alone.
    """

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """Queries [1, H, T, D], keys and values [1, H_kv, T, D] -> [1, T, H, D]."""
        ...

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:
        """Inputs [1, T, D] -> [T, length, D]: the last so many of each token's row, its own the last.

        For layers that remember no more of a row; zeros before its first token.
        """
        ...


def layer_index(module: nn.Module) -> int:
    """Of a module of transformers; nn.Module types every attribute as Tensor or Module."""
    return cast(int, module.layer_idx)


def is_causal(module: nn.Module) -> bool:
    """Whether a token sees none after it; else it sees all of its chunk, as in a block that is drafted."""
    return getattr(module, "is_causal", True) is not False


class Layout(Attends, Protocol):
    """One forward pass over chunks: where each token is written, and what it sees."""

    @property
    def positions(self) -> Tensor:
        """[T], of the chunks' tokens in their order."""
        ...


class CacheFull(Exception):
    """What is held and what is asked for do not fit together."""


class Cache(Protocol):
    """Keys and values by slot and position. It drops nothing by itself: who uses it knows what is needed.

    A slot holds its first so many positions, up to the highest written; those beyond a row's length are dead,
    and are overwritten when their turn comes. What a row left behind stays until its slot is freed.
    """

    @property
    def longest(self) -> int:
        """Positions of a row that has the cache for itself."""
        ...

    def fits(self, ends: Mapping[int, int]) -> bool:
        """Whether slots can grow to so many positions each, beside all that is held."""
        ...

    def reserve(self, chunks: Sequence[Chunk]) -> None:
        """Make room for what a pass writes, and count it as held; raises CacheFull before any change."""
        ...

    def write(self, layer: int, slots: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        """Keys and values [T, H_kv, D] of one layer to places [T] that room was made for."""
        ...

    def layout(self, chunks: Sequence[Chunk]) -> Layout:
        """For a pass over chunks that room was made for."""
        ...

    def share(self, source: int, target: int, length: int) -> None:
        """Let `target` hold the first `length` positions of `source` alone; they may be the same slot."""
        ...

    def move(self, source: int, target: int, length: int) -> None:
        """The same, where the source is not needed any more."""
        ...

    def free(self, slot: int) -> None:
        """Hold nothing there any more."""
        ...

    def wipe(self, slot: int) -> None:
        """Free a slot that may hold NaN, which must not outlive its row through masked positions."""
        ...

    def trim(self, slots: int) -> None:
        """Free all slots but the first so many, and give memory back where that is possible."""
        ...


class Slots:
    """Which slots are taken; the lowest free one is given out first, so that those in use stay together."""

    def __init__(self) -> None:
        self._taken: list[bool] = []

    @property
    def next(self) -> int:
        return self._taken.index(False) if False in self._taken else len(self._taken)

    def take(self) -> int:
        slot = self.next
        self._taken[slot : slot + 1] = [True]
        return slot

    def free(self, slot: int) -> None:
        self._taken[slot] = False
        while self._taken and not self._taken[-1]:
            self._taken.pop()

    @property
    def lowest_hole(self) -> int | None:
        """A free slot below one in use."""
        return self.next if self.next < len(self._taken) else None
