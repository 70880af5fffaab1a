"""Pages are never lost, never two rows' to write on, and stay with whoever still holds them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.engine.cache import CacheFull
from worker.engine.cuda.pages import SCRATCH, Pages

SLOTS, PAGES, PAGE = 4, 7, 4
LONGEST = 12
slots = st.integers(0, SLOTS - 1)
lengths = st.integers(0, LONGEST)


class Books(RuleBasedStateMachine):
    """Each position is marked as it is written; a slot must read back what it wrote or took over."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(PAGES + 1, SLOTS, PAGE)
        self.memory: dict[tuple[int, int], int] = {}  # (page, place in it) -> mark
        self.wrote: list[list[int]] = [[] for _ in range(SLOTS)]
        self.marks = 0

    @rule(slot=slots, more=st.integers(1, 5))
    def grow(self, slot: int, more: int) -> None:
        end = min(LONGEST, len(self.wrote[slot]) + more)
        missing, free = self.pages.missing({slot: end}), self.pages.num_free
        before = [list(self.pages.of(s)) for s in range(SLOTS)]
        if missing > free:
            with pytest.raises(CacheFull):
                self.pages.grow({slot: end})
            assert [list(self.pages.of(s)) for s in range(SLOTS)] == before
            return
        self.pages.grow({slot: end})
        assert self.pages.num_free == free - missing
        for position in range(len(self.wrote[slot]), end):
            self.marks += 1
            self.wrote[slot].append(self.marks)
            self.memory[self.pages.of(slot)[position // PAGE], position % PAGE] = self.marks

    @rule(source=slots, heir=slots, length=lengths, moves=st.booleans())
    def take_over(self, source: int, heir: int, length: int, moves: bool) -> None:
        length = min(length, len(self.wrote[source]))
        before = [list(self.pages.of(slot)) for slot in range(SLOTS)]
        try:
            copied = (self.pages.move if moves else self.pages.share)(source, heir, length)
        except CacheFull:
            assert self.pages.num_free == 0
            if moves:  # all of it, then
                self._hand_over(source, heir, len(self.wrote[source]), moves)
            else:
                assert [list(self.pages.of(slot)) for slot in range(SLOTS)] == before
            return
        if copied:
            for place in range(PAGE):
                self.memory[copied[1], place] = self.memory.get((copied[0], place), 0)
        self._hand_over(source, heir, length, moves)

    def _hand_over(self, source: int, heir: int, length: int, moves: bool) -> None:
        wrote = self.wrote[source][:length]
        if moves:
            self.wrote[source] = []
        self.wrote[heir] = wrote

    @precondition(lambda self: any(self.wrote))
    @rule(slot=slots)
    def free(self, slot: int) -> None:
        held = set(self.pages.of(slot))
        others = {page for s in range(SLOTS) if s != slot for page in self.pages.of(s)}
        assert set(self.pages.release(slot)) == held - others
        self.wrote[slot] = []

    @invariant()
    def every_page_is_free_or_held(self) -> None:
        held = {page for slot in range(SLOTS) for page in self.pages.of(slot)}
        assert SCRATCH not in held
        assert self.pages.num_free + len(held) == PAGES

    @invariant()
    def a_slot_reads_what_is_its_own(self) -> None:
        for slot, wrote in enumerate(self.wrote):
            table = self.pages.of(slot)
            assert len(table) == -(-len(wrote) // PAGE)
            assert [self.memory[table[i // PAGE], i % PAGE] for i in range(len(wrote))] == wrote


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=30)


def test_a_common_beginning_is_held_once():
    pages = Pages(10, 3, 4)
    pages.grow({0: 10})

    assert pages.share(0, 1, 8) is None
    assert pages.share(0, 2, 10) == (pages.of(0)[2], pages.of(2)[2])
    assert pages.num_free == 9 - 3 - 1

    last = pages.of(0)[2]
    assert pages.release(0) == [last]
    assert pages.num_free == 9 - 3


def test_a_full_page_that_a_shorter_row_will_write_on_is_copied():
    pages = Pages(10, 2, 4)
    pages.grow({0: 4})
    pages.share(0, 1, 4)

    assert pages.share(1, 1, 3) == (pages.of(0)[0], pages.of(1)[0])
    assert pages.of(0) != pages.of(1)
