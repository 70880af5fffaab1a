"""A pass whose attention is the compiled kernel: nothing is padded, and rows read their own slots."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from worker.engine.attention import Buffers, Pass, recent_of_slots
from worker.engine.cache import Chunk, is_causal, layer_index
from worker.engine.cpu.kernels import Kernels
from worker.engine.recent import RecentInputs

# Longer chunks are left to torch's attention, whose products of many queries are better blocked.
_LONGEST = 256


class CompiledPass:
    """Stands in for `Pass`."""

    def __init__(self, cache: Buffers, chunks: Sequence[Chunk], kernels: Kernels) -> None:
        self.buffers = cache
        self._chunks = chunks
        self._kernels = kernels
        table: list[tuple[int, int, int, int]] = []
        positions: list[int] = []
        long: list[Chunk] = []
        long_tokens: list[int] = []
        for chunk in chunks:
            length, offset = len(chunk.token_ids), len(positions)
            if length <= _LONGEST:
                table.append((chunk.slot, chunk.start, offset, length))
            else:
                long.append(chunk)
                long_tokens.extend(range(offset, offset + length))
            positions.extend(range(chunk.start, chunk.end))
        self.positions = torch.tensor(positions)
        self._table = torch.tensor(table, dtype=torch.int64)
        self._long = Pass(cache, long, "cpu") if long else None
        self._long_tokens = torch.tensor(long_tokens, dtype=torch.int64)
        self._recent: RecentInputs | None = None

    @property
    def table(self) -> Tensor | None:
        """The chunks as kernels take them, where they take all."""
        return self._table if self._long is None else None

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
        keys, values = self.buffers.keys[layer], self.buffers.values[layer]
        heads, tokens, key_dim = query.shape[1:]
        output = query.new_empty(tokens, heads, values.shape[-1])
        if len(self._table):
            scale = key_dim**-0.5 if scaling is None else scaling
            self._kernels.attend(
                *(_rows(query), _rows(key), _rows(value), keys, values, self._table, scale, window, output),
                is_causal=is_causal(module),
            )
        if self._long is not None:
            some = self._long_tokens
            parts = (query[:, :, some], key[:, :, some], value[:, :, some])
            output[some] = self._long.attend(module, *parts, scaling, window)[0]
        return output[None]

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:
        buffer = self.buffers.keys[layer_index(module)]
        if self._recent is None:
            slots = torch.tensor([chunk.slot for chunk in self._chunks for _ in chunk.token_ids])
            self._recent = recent_of_slots(slots, self.positions, buffer.shape[2])
        return self._recent.update(buffer, inputs, length)


def _rows(x: Tensor) -> Tensor:
    """[H, T, D] with each token's head contiguous."""
    return x[0] if x.stride(-1) == 1 else x[0].contiguous()
