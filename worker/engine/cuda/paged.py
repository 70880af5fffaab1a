"""The cache in a GPU's memory: pages taken once, at the start, and given to the rows as these grow."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from worker.engine.cache import Chunk, LayerShape, Layout, bytes_per_token
from worker.engine.cuda.gathered import GatheredPass
from worker.engine.cuda.pages import PAGE_TOKENS, Pages
from worker.engine.cuda.store import PageStore
from worker.engine.cuda.varlen import VarlenPass, can_attend


class PagedCache:
    """Rows that begin alike share the pages of their beginning; nothing is copied but the last of them."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        max_slots: int,
        max_positions: int,
        dtype: torch.dtype,
        device: str,
        max_bytes: int | None = None,
        page_tokens: int = PAGE_TOKENS,
    ) -> None:
        """`max_bytes`: of all pages together; None: as many as all slots need at full length.

        One row at full length always has room, should its last page and the scratch page be beyond the limit.
        """
        pages_per_slot = -(-max_positions // page_tokens)
        num_pages = 1 + max_slots * pages_per_slot  # and the scratch page
        if max_bytes is not None:
            per_page = bytes_per_token(shapes, dtype) * page_tokens
            num_pages = max(1 + pages_per_slot, min(num_pages, max_bytes // per_page))
        self._max_slots = max_slots
        self._max_positions = max_positions
        self.reads_pages = can_attend(shapes, dtype, device)
        self.pages = Pages(num_pages, max_slots, page_tokens)
        table_size = max_slots, pages_per_slot
        self.store = PageStore(shapes, num_pages, page_tokens, table_size, dtype, device)

    @property
    def longest(self) -> int:
        return min(self._max_positions, self.pages.most * self.store.page_tokens)

    def fits(self, ends: Mapping[int, int]) -> bool:
        return self.pages.missing(ends) <= self.pages.num_free

    def reserve(self, chunks: Sequence[Chunk]) -> None:
        self.pages.grow({chunk.slot: chunk.end for chunk in chunks})

    def write(self, layer: int, slots: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        self.store.follow(self.pages)
        places = self.store.places(slots, positions)
        self.store.write(layer, places, key.transpose(0, 1)[None], value.transpose(0, 1)[None])

    def layout(self, chunks: Sequence[Chunk]) -> Layout:
        self.store.follow(self.pages)
        if self.reads_pages:
            return VarlenPass.over(self.store, chunks)
        return GatheredPass(self.store, chunks)

    def share(self, source: int, target: int, length: int) -> None:
        if copied := self.pages.share(source, target, length):
            self.store.copy(*copied)

    def move(self, source: int, target: int, length: int) -> None:
        if copied := self.pages.move(source, target, length):
            self.store.copy(*copied)

    def free(self, slot: int) -> None:
        self.pages.release(slot)

    def wipe(self, slot: int) -> None:
        if freed := self.pages.release(slot):
            self.store.wipe(freed)

    def trim(self, slots: int) -> None:
        """The pages' memory is kept: it was free when the pair was loaded, and may never be again."""
        for slot in range(slots, self._max_slots):
            self.pages.release(slot)
