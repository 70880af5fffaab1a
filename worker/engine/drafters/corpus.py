"""Texts of the past, searched for the longest suffix of another; of fixed size, the oldest is overwritten.

A ring of tokens with hash chains, as LZ77 compressors keep them: each place is linked to the one before it
that ended in the same MIN_MATCH tokens, by a hash of them. Nothing grows, whatever comes in.
"""

from array import array
from collections.abc import Sequence

MIN_MATCH = 3
MAX_MATCH = 32  # longer ones tell no more
_MAX_TRIED = 16  # places on a chain, the newest first
_END = -1  # between texts: no match and no continuation crosses it
_NOWHERE = -1


class Corpus:
    """Places are counted from the first token ever; those more than `capacity` back are gone."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        if capacity & (capacity - 1):
            raise ValueError("the capacity must be a power of two")
        self._mask = capacity - 1
        self._tokens = array("i", [_END]) * capacity
        self._earlier = array("q", [_NOWHERE]) * capacity  # by place: the one before it on its chain
        self._newest = array("q", [_NOWHERE]) * capacity  # by hash: where its chain begins
        self._written = 0

    def add(self, text: Sequence[int]) -> None:
        """Take in a text; of one longer than the corpus, its end."""
        tokens, mask = self._tokens, self._mask
        self._write(_END)
        for index, token in enumerate(text[-mask:]):
            self._write(token)
            if index >= MIN_MATCH - 1:
                place = self._written  # of the token to come
                chain = self._hash(tokens[place - 3 & mask], tokens[place - 2 & mask], token)
                self._earlier[place & mask] = self._newest[chain]
                self._newest[chain] = place

    def find(self, text: Sequence[int]) -> tuple[int, int]:
        """The longest suffix of the text that is known, and the place after it; (0, 0) below MIN_MATCH.

        Of equally long ones the latest.
        """
        best, best_place = 0, 0
        if len(text) >= MIN_MATCH:
            place = self._newest[self._hash(*text[-MIN_MATCH:])]
            for _ in range(_MAX_TRIED):
                if place <= self._written - self._mask or best == MAX_MATCH:
                    break
                length = self._match(text, place)
                if length > best:
                    best, best_place = length, place
                place = self._earlier[place & self._mask]
        return (best, best_place) if best >= MIN_MATCH else (0, 0)

    def continues(self, place: int, tokens: Sequence[int]) -> bool:
        """Whether these tokens are what is at that place."""
        return self.read(place, len(tokens)) == list(tokens)

    def read(self, place: int, limit: int) -> list[int]:
        """What is at that place, to the end of its text at most."""
        found: list[int] = []
        if place <= self._written - self._mask:
            return found
        for index in range(place, min(place + limit, self._written)):
            token = self._tokens[index & self._mask]
            if token == _END:
                break
            found.append(token)
        return found

    def _write(self, token: int) -> None:
        self._tokens[self._written & self._mask] = token
        self._written += 1
        self._earlier[self._written & self._mask] = _NOWHERE

    def _match(self, text: Sequence[int], place: int) -> int:
        """How many tokens before the place are the text's last."""
        tokens, mask = self._tokens, self._mask
        oldest = self._written - mask
        longest = min(len(text), MAX_MATCH, place - oldest)
        length = 0
        while length < longest and tokens[place - 1 - length & mask] == text[-1 - length]:
            length += 1
        return length

    def _hash(self, first: int, second: int, third: int) -> int:
        mixed = (first * 0x9E3779B1 ^ second * 0x85EBCA77 ^ third * 0xC2B2AE3D) & 0xFFFFFFFF
        return (mixed ^ mixed >> 15) & self._mask
