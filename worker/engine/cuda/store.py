"""The pages themselves in a device's memory, and beside them the tables that say which are a slot's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.engine.cache import LayerShape
from worker.engine.cuda.pages import Pages
from worker.engine.transfer import to_device


class PageStore:
    """Per layer, keys and values as [pages, page_tokens, kv_heads, dim]."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_pages: int,
        page_tokens: int,
        table_size: tuple[int, int],
        dtype: torch.dtype,
        device: str,
    ) -> None:
        """`table_size`: slots, and pages that each may have."""
        slots, pages_per_slot = table_size
        self.page_tokens = page_tokens
        self.device = device
        self.padding_slot = slots  # all its pages are the scratch page: what is written there is nobody's
        # Zeros, not garbage: a masked position still takes part in gathered products, and 0 * NaN is NaN.
        size = num_pages, page_tokens
        self.keys = [torch.zeros(*size, s.kv_heads, s.key_dim, dtype=dtype, device=device) for s in shapes]
        self.values = [
            torch.zeros(*size, s.kv_heads, s.value_dim, dtype=dtype, device=device) for s in shapes
        ]
        self.tables = torch.zeros(slots + 1, pages_per_slot, dtype=torch.int32, device=device)
        self._tables = torch.zeros(slots + 1, pages_per_slot, dtype=torch.int32)  # as the host knows them

    def follow(self, pages: Pages) -> None:
        """Bring the device's tables, at their address, to what has changed."""
        if not pages.changed:
            return
        for slot in pages.changed:
            held = torch.tensor(pages.of(slot), dtype=torch.int32)
            self._tables[slot] = 0  # a page that became another's may hold NaN, which masks do not stop
            self._tables[slot, : len(held)] = held
        pages.changed.clear()
        self.tables.copy_(to_device(self._tables, self.device))

    def places(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where tokens [T] are among those of all pages."""
        pages = self.tables[slots, positions // self.page_tokens]
        return pages * self.page_tokens + positions % self.page_tokens

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Keys and values [1, H_kv, T, D]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, places, key[0].transpose(0, 1))
        self.values[layer].flatten(0, 1).index_copy_(0, places, value[0].transpose(0, 1))

    def copy(self, source: int, target: int) -> None:
        """A page over another."""
        for buffer in (*self.keys, *self.values):
            buffer[target] = buffer[source]

    def wipe(self, pages: Sequence[int]) -> None:
        for buffer in (*self.keys, *self.values):
            buffer[list(pages)] = 0
