"""A model's cache and who lives in it: prompts with a known beginning take it over instead of computing it.

What a row leaves behind stays, and can be taken over too, until its slot or its memory is needed.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from worker.engine.cache import Cache, Slots
from worker.engine.prefixes import Prefixes


class Resident(Protocol):
    """What lives in a slot: of its tokens the first `cached` have keys and values there."""

    slot: int
    cached: int

    @property
    def tokens(self) -> Sequence[int]: ...


class Storage:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._slots = Slots()
        self._computed: Prefixes[int] = Prefixes()  # by slot
        self._begun: set[int] = set()  # slots whose contents are their residents'
        self._left: dict[int, None] = {}  # those whose contents are of who has left, the first to leave first

    def take_slot(self) -> int:
        return self._slots.take()

    @property
    def next_slot(self) -> int:
        return self._slots.next

    def begin(self, resident: Resident) -> int:
        """Fill its slot with what is known of its tokens, the last excepted; the number that were."""
        fits = self.make_room({resident.slot: len(resident.tokens)})
        source, length = self._computed.find(resident.tokens) if fits else (None, 0)
        self._left.pop(resident.slot, None)
        self._begun.add(resident.slot)
        self._cache.share(resident.slot if source is None else source, resident.slot, length)
        self._computed.note(resident.slot, resident.tokens, length)
        resident.cached = length
        return length

    def note(self, resident: Resident, most: int | None = None) -> None:
        """What it has computed is sound: others may take it over, or the first so many positions of it."""
        length = min(resident.cached, len(resident.tokens))
        if most is not None:
            length = min(length, most)
        self._computed.note(resident.slot, resident.tokens, length)

    def known(self, tokens: Sequence[int]) -> int:
        """How long a beginning could be taken over."""
        return self._computed.find(tokens)[1]

    def leave(self, resident: Resident) -> None:
        self._slots.free(resident.slot)
        if resident.slot in self._begun:
            self._begun.remove(resident.slot)
            self._left[resident.slot] = None

    def wipe(self, resident: Resident) -> None:
        """What it has computed is not sound."""
        self._cache.wipe(resident.slot)
        self._computed.forget(resident.slot)

    def make_room(self, ends: Mapping[int, int]) -> bool:
        """Whether these slots can grow so far; what rows left behind goes for it, the oldest first."""
        while not self._cache.fits(ends):
            if not self._left:
                return False
            self._drop(min(self._left, key=lambda slot: slot in ends))
        return True

    def clear(self) -> None:
        """Of all that rows left behind."""
        for slot in list(self._left):
            self._drop(slot)

    def trim(self, slots: int) -> None:
        for slot in [slot for slot in self._left if slot >= slots]:
            self._drop(slot)
        self._cache.trim(slots)

    def compact(self, residents: Sequence[Resident]) -> None:
        """Move residents from the highest slots into holes: passes run over the slots in use."""
        for resident in sorted(residents, key=lambda resident: resident.slot, reverse=True):
            hole = self._slots.lowest_hole
            if hole is None or hole > resident.slot:
                return
            self._move(resident, hole)

    def _move(self, resident: Resident, target: int) -> None:
        """What was left in the target is lost, unless the resident has not begun."""
        source = resident.slot
        if source in self._begun:
            self._cache.move(source, target, resident.cached)
            self._cache.free(source)
            self._computed.rename(source, target, most=resident.cached)
            self._left.pop(target, None)
            self._begun.remove(source)
            self._begun.add(target)
        self._slots.free(source)
        resident.slot = self._slots.take()

    def _drop(self, slot: int) -> None:
        del self._left[slot]
        self._cache.free(slot)
        self._computed.forget(slot)
