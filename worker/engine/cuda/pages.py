"""Who holds which page: slots whose rows begin alike share pages, each counted by how many hold it."""

from collections.abc import Mapping, Sequence

from worker.engine.cache import CacheFull

PAGE_TOKENS = 256  # FlashAttention 2 takes multiples of it, and sharing wants it small
SCRATCH = 0  # no slot's page: what padding writes goes there


class Pages:
    """A slot's pages are those of its positions, in order. Shared pages are full, and never written again."""

    def __init__(self, num_pages: int, num_slots: int, page_tokens: int = PAGE_TOKENS) -> None:
        self._page_tokens = page_tokens
        self._free = list(range(num_pages - 1, SCRATCH, -1))
        self._holders = [0] * num_pages
        self._tables: list[list[int]] = [[] for _ in range(num_slots)]
        self.most = len(self._free)  # pages there are to give
        self.changed: set[int] = set()  # slots, until whoever keeps a copy of the tables clears them

    @property
    def num_free(self) -> int:
        return len(self._free)

    def of(self, slot: int) -> Sequence[int]:
        return self._tables[slot]

    def missing(self, ends: Mapping[int, int]) -> int:
        """Pages to take until each slot has so many positions."""
        return sum(max(0, self._number(end) - len(self._tables[slot])) for slot, end in ends.items())

    def grow(self, ends: Mapping[int, int]) -> None:
        """Give slots the pages of so many positions; raises CacheFull, having changed nothing."""
        missing = self.missing(ends)
        if missing > len(self._free):
            raise CacheFull(f"{missing} pages of {self._page_tokens} tokens, and {len(self._free)} are free")
        for slot, end in ends.items():
            table = self._tables[slot]
            while len(table) * self._page_tokens < end:
                table.append(self._take())
                self.changed.add(slot)

    def share(self, source: int, target: int, length: int) -> tuple[int, int] | None:
        """Let `target` hold the first positions of `source` and nothing else; they may be the same.

        Full pages are shared. A last one that is not full is written on: if others hold it too, it is copied,
        and the answer is (from, to). Raises CacheFull, having changed nothing, if there is no page for it.
        """
        pages = self._tables[source][: self._number(length)]
        copies = length % self._page_tokens > 0 and self._has_others(pages[-1], target)
        if (
            copies
            and not self._free
            and all(p in pages or self._has_others(p, target) for p in self.of(target))
        ):
            raise CacheFull(f"1 page of {self._page_tokens} tokens, and none is free")
        for page in pages:
            self._holders[page] += 1
        self.release(target)
        self._tables[target] = pages
        self.changed.add(target)
        if not copies:
            return None
        shared, pages[-1] = pages[-1], self._take()
        self._holders[shared] -= 1
        return shared, pages[-1]

    def move(self, source: int, target: int, length: int) -> tuple[int, int] | None:
        """The same, where `source` then holds nothing, and its last page need not be copied for its sake."""
        pages, self._tables[source] = self._tables[source], []
        self.release(target)
        self._tables[target] = pages
        self.changed.add(source)
        return self.share(target, target, length)

    def release(self, slot: int) -> list[int]:
        """Hold no page; which ones nobody holds any more."""
        dropped, self._tables[slot] = self._tables[slot], []
        for page in dropped:
            self._holders[page] -= 1
        freed = [page for page in dropped if not self._holders[page]]
        self._free.extend(reversed(freed))
        if dropped:
            self.changed.add(slot)
        return freed

    def _has_others(self, page: int, slot: int) -> bool:
        """Whether other slots hold it."""
        return self._holders[page] > (page in self._tables[slot])

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _number(self, positions: int) -> int:
        return -(-positions // self._page_tokens)
