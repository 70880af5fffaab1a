"""Finds who begins with the same tokens: an index of blocks of tokens, each hashed with all before it."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

BLOCK = 16  # tokens; less in common is not worth looking for

Key = TypeVar("Key", bound=Hashable)


class Prefixes(Generic[Key]):
    """Token sequences by key. They may grow meanwhile: what counts is the length that was noted."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[Sequence[int], int]] = {}
        self._chains: dict[Key, list[int]] = {}  # the hash of each whole block
        self._holders: dict[int, dict[Key, None]] = {}  # by hash

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def note(self, key: Key, tokens: Sequence[int], length: int) -> None:
        """The key has the first `length` of the tokens, and nothing else any more."""
        self.forget(key)
        if length < BLOCK:
            return
        self._known[key] = tokens, length
        chain = self._chains[key] = list(_chain(tokens, length))
        for block in chain:
            self._holders.setdefault(block, {})[key] = None

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)
        for block in self._chains.pop(key, ()):
            holders = self._holders[block]
            del holders[key]
            if not holders:
                del self._holders[block]

    def rename(self, old: Key, new: Key, most: int) -> None:
        """What was noted of one key, or the first so many tokens of it, is now another's."""
        tokens, length = self._known.get(old, ((), 0))
        self.forget(old)
        self.note(new, tokens, min(length, most))

    def find(self, tokens: Sequence[int]) -> tuple[Key | None, int]:
        """Who shares the longest beginning, and its length, which leaves at least the last token out."""
        most = len(tokens) - 1
        blocks, holders = 0, dict[Key, None]()
        for block in _chain(tokens, most):
            deeper = self._holders.get(block)
            if deeper is None:
                break
            blocks, holders = blocks + 1, deeper
        best, length = None, 0
        for key in holders:
            known, end = self._known[key]
            place, end = blocks * BLOCK, min(end, most)
            while place < end and known[place] == tokens[place]:
                place += 1
            if place > length:
                best, length = key, place
            if length == most:
                break
        if best is None or list(self._known[best][0][:length]) != list(tokens[:length]):
            return None, 0  # nobody, or hashes that collide
        return best, length


def _chain(tokens: Sequence[int], length: int) -> Iterator[int]:
    value = 0
    for start in range(0, length - BLOCK + 1, BLOCK):
        value = hash((value, *tokens[start : start + BLOCK]))
        yield value
