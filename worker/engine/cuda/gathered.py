"""Attention where no kernel reads pages (float32; CPUs, in tests): a layer's are gathered for torch's own."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from worker.engine.attention import Pass
from worker.engine.cache import Chunk, layer_index
from worker.engine.cuda.store import PageStore
from worker.engine.recent import RecentInputs
from worker.engine.transfer import to_device


class _Gathered:
    """The rows of a pass side by side, as a contiguous cache would have them; one layer at a time."""

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor] = [Tensor()] * num_layers
        self.values: list[Tensor] = [Tensor()] * num_layers


class GatheredPass:
    """A pass over such rows, whose keys and values are written to their pages first."""

    def __init__(self, store: PageStore, chunks: Sequence[Chunk]) -> None:
        self._store = store
        self._gathered = _Gathered(len(store.keys))
        side_by_side = [replace(chunk, slot=row) for row, chunk in enumerate(chunks)]
        self._pass = Pass(self._gathered, side_by_side, store.device)
        self.positions = self._pass.positions

        slots = to_device(torch.tensor([chunk.slot for chunk in chunks]), store.device)
        slots_of_tokens = slots[self._pass.slots]
        self._places = store.places(slots_of_tokens, self.positions)
        self._recent = RecentInputs(slots_of_tokens, self.positions, store.places)
        pages_in_use = -(-max(chunk.end for chunk in chunks) // store.page_tokens)
        self._pages = store.tables[slots, :pages_in_use]

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
        self._store.write(layer, self._places, key, value)
        self._gathered.keys[layer] = self._gather(self._store.keys[layer])
        self._gathered.values[layer] = self._gather(self._store.values[layer])
        output = self._pass.attend(module, query, key, value, scaling, window)
        self._gathered.keys[layer] = self._gathered.values[layer] = Tensor()
        return output

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:
        return self._recent.update(self._store.keys[layer_index(module)], inputs, length)

    def _gather(self, pages: Tensor) -> Tensor:
        """[rows, kv_heads, positions, dim]"""
        return pages[self._pages].flatten(1, 2).transpose(1, 2)
