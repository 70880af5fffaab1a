"""The attention function that unmodified transformers models call: rows of any length in one pass.

A pass is [1, T] tokens: a chunk of consecutive tokens for each of its rows. Keys and values go into the
cache; short chunks (verify blocks) then attend together, over a view of the slots in use; long ones alone.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from worker.engine.cache import Attends, Chunk, is_causal, layer_index
from worker.engine.errors import EngineError
from worker.engine.recent import RecentInputs

ATTENTION = "specmill"
# What a query sees: so many positions back (None: all), and whether none that follow in its chunk.
_Sight = tuple[int | None, bool]
# Chunks of at most so many tokens are padded to the longest of them and attend in one product per layer.
_BATCHED_TOKENS = 32


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: Attends | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers as "specmill"."""
    where = type(module).__name__
    if packed is None:
        raise EngineError(f"{where} does not pass keyword arguments on to its attention function")
    for name, what in (("softcap", "attention softcapping"), ("s_aux", "attention sinks")):
        if kwargs.get(name) is not None:
            raise EngineError(f"{where} needs {what}, which this engine does not compute")
    if attention_mask is not None:
        raise EngineError(f"{where} needs an attention mask of its own, which this engine does not apply")
    return packed.attend(module, query, key, value, scaling, sliding_window), None


# No mask function is registered beside it: transformers then builds no mask, and full and sliding layers are
# told apart by the `sliding_window` that each passes.
AttentionInterface.register(ATTENTION, attention)


class Buffers(Protocol):
    """Of each layer, as [slots, kv_heads, positions, dim]."""

    keys: list[Tensor]
    values: list[Tensor]


class Pass:
    """One forward pass over chunks: where each token is written, and what it sees."""

    def __init__(self, cache: Buffers, chunks: Sequence[Chunk], device: str) -> None:
        self._cache = cache
        self._device = device
        self._masks: dict[tuple[_Sight, int, int], Tensor] = {}
        self.slots = _tensor([c.slot for c in chunks for _ in c.token_ids], device)
        self.positions = _tensor([p for c in chunks for p in range(c.start, c.end)], device)
        self._recent: RecentInputs | None = None

        self._long: list[tuple[int, Chunk]] = []  # with the index of its first token in the pass
        short: list[tuple[int, Chunk]] = []
        offset = 0
        for chunk in chunks:
            (short if len(chunk.token_ids) <= _BATCHED_TOKENS else self._long).append((offset, chunk))
            offset += len(chunk.token_ids)
        self._plan_block(short, offset)

    def _plan_block(self, short: Sequence[tuple[int, Chunk]], num_tokens: int) -> None:
        """Lay the short chunks out as [slots, width]; nobody reads what padding and idle slots compute."""
        self._block_tokens = [offset + i for offset, c in short for i in range(len(c.token_ids))]
        self._block_slots = 1 + max((c.slot for _, c in short), default=-1)
        self._block_width = max((len(c.token_ids) for _, c in short), default=0)
        self._block_length = max((c.end for _, c in short), default=0)
        places = [c.slot * self._block_width + i for _, c in short for i in range(len(c.token_ids))]
        self._block_is_dense = places == list(range(num_tokens)) and len(places) == (
            self._block_slots * self._block_width
        )
        self._block_places = _tensor(places, self._device)
        self._block_index = _tensor(self._block_tokens, self._device)
        self._block_positions = self._laid_out(self.positions[self._block_index])
        self._block_ends = [c.end for _, c in short for _ in c.token_ids]

    def _laid_out(self, of_tokens: Tensor) -> Tensor:
        """Numbers of the short chunks' tokens as [slots, width]."""
        block = torch.zeros(self._block_slots * self._block_width, dtype=torch.int64, device=self._device)
        block[self._block_places] = of_tokens
        return block.view(self._block_slots, self._block_width)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        layer = layer_index(module)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self.slots, :, self.positions] = key[0].transpose(0, 1)
        values[self.slots, :, self.positions] = value[0].transpose(0, 1)

        queries = query[0].transpose(0, 1)
        sight = window, is_causal(module)
        if self._block_is_dense:
            return self._attend_block(queries, keys, values, scaling, sight)[None]
        output = query.new_empty(queries.shape[0], queries.shape[1], values.shape[-1])
        if self._block_tokens:
            padded = queries.new_zeros(self._block_slots * self._block_width, *queries.shape[1:])
            padded[self._block_places] = queries[self._block_index]
            block = self._attend_block(padded, keys, values, scaling, sight)
            output[self._block_index] = block[self._block_places]
        for offset, chunk in self._long:
            end = offset + len(chunk.token_ids)
            output[offset:end] = self._attend_chunk(chunk, queries[offset:end], keys, values, scaling, sight)
        return output[None]

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:
        buffer = self._cache.keys[layer_index(module)]
        if self._recent is None:
            self._recent = recent_of_slots(self.slots, self.positions, buffer.shape[2])
        return self._recent.update(buffer, inputs, length)

    def _attend_block(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None, sight: _Sight
    ) -> Tensor:
        """Queries [slots * width, H, D], each slot against its own keys.

        The query heads that share a key head are laid out as more queries, so each key is read once for all.
        """
        slots, width, length = self._block_slots, self._block_width, self._block_length
        kv_heads, dim = keys.shape[1], queries.shape[-1]
        group = queries.shape[1] // kv_heads
        grouped = queries.reshape(slots, width, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        output = scaled_dot_product_attention(
            grouped.reshape(slots, kv_heads, group * width, dim),
            keys[:slots, :, :length],
            values[:slots, :, :length],
            attn_mask=self._block_mask(sight, group, queries.dtype),
            scale=scaling,
        )
        output = output.view(slots, kv_heads, group, width, -1).permute(0, 3, 1, 2, 4)
        return output.reshape(slots * width, kv_heads * group, -1)

    def _attend_chunk(
        self,
        chunk: Chunk,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        sight: _Sight,
    ) -> Tensor:
        output = scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys[chunk.slot, :, : chunk.end][None],
            values[chunk.slot, :, : chunk.end][None],
            attn_mask=self._chunk_mask(chunk, sight, queries.dtype),
            scale=scaling,
            enable_gqa=True,
        )
        return output[0].transpose(0, 1)

    def _block_mask(self, sight: _Sight, group: int, dtype: torch.dtype) -> Tensor:
        key = (sight, group, -1)
        if key not in self._masks:
            ends = None if sight[1] else self._laid_out(_tensor(self._block_ends, self._device))
            mask = _mask(self._block_positions, ends, self._block_length, sight[0], dtype)
            self._masks[key] = mask.repeat(1, group, 1)[:, None]
        return self._masks[key]

    def _chunk_mask(self, chunk: Chunk, sight: _Sight, dtype: torch.dtype) -> Tensor:
        key = (sight, chunk.start, chunk.end)
        if key not in self._masks:
            positions = torch.arange(chunk.start, chunk.end, device=self._device)
            ends = None if sight[1] else torch.full_like(positions, chunk.end)
            self._masks[key] = _mask(positions, ends, chunk.end, sight[0], dtype)
        return self._masks[key]


def recent_of_slots(slots: Tensor, positions: Tensor, slot_positions: int) -> RecentInputs:
    """In buffers whose slots have room for so many positions."""
    return RecentInputs(slots, positions, lambda slots, positions: slots * slot_positions + positions)


def _mask(
    positions: Tensor, ends: Tensor | None, length: int, window: int | None, dtype: torch.dtype
) -> Tensor:
    """[..., length]: 0 where a query at a position sees a key, else -inf. A window counts itself.

    It sees the keys before its `ends`, or up to itself.
    """
    keys = torch.arange(length, device=positions.device)
    hidden = keys > positions[..., None] if ends is None else keys >= ends[..., None]
    if window is not None:
        hidden |= keys <= positions[..., None] - window
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, -torch.inf)


def _tensor(numbers: Sequence[int], device: str) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
