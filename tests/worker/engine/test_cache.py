"""Slots are handed out densely, and the buffers grow without losing what they hold."""

from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.cache import Chunk, LayerShape
from worker.engine.contiguous import ContiguousCache
from worker.engine.storage import Storage


@dataclass
class Tenant:
    slot: int
    cached: int
    mark: float
    tokens: list[int] = field(default_factory=list[int])


def small_cache(max_slots: int = 8, max_positions: int = 1000) -> ContiguousCache:
    return ContiguousCache([LayerShape(2, 3, 5)] * 2, max_slots, max_positions, torch.float64, "cpu")


def chunks(slots: int, positions: int) -> list[Chunk]:
    return [Chunk(slot, 0, [0] * positions, 0) for slot in range(slots)]


def test_memory_is_taken_as_it_is_needed():
    cache = small_cache()
    assert cache.keys[0].numel() == 0

    cache.reserve(chunks(1, 10))
    assert cache.keys[0].shape == (4, 2, 256, 3)
    assert cache.values[1].shape == (4, 2, 256, 5)
    cache.keys[1][0, :, 9] = 7

    cache.reserve(chunks(5, 990))
    assert cache.keys[1].shape == (8, 2, 1000, 3)  # never beyond what the pair allows
    assert cache.keys[1][0, :, 9].eq(7).all()
    assert cache.keys[1].sum() == 7 * 2 * 3


@given(st.lists(st.one_of(st.none(), st.integers(0, 7)), max_size=40))
def test_compaction_leaves_no_hole_and_moves_rows_whole(events: list[int | None]):
    """Each event lets a tenant in, or the n-th one out."""
    cache = small_cache()
    storage = Storage(cache)
    cache.reserve(chunks(8, 4))
    tenants: list[Tenant] = []
    for number, event in enumerate(events):
        if event is not None and event < len(tenants):
            storage.leave(tenants.pop(event))
        elif event is None and len(tenants) < 8:
            tenants.append(Tenant(storage.take_slot(), 0, float(number)))
            storage.begin(tenants[-1])
            tenants[-1].cached = 3
            cache.keys[0][tenants[-1].slot, :, :3] = number
        if number % 3 == 0:
            storage.compact(tenants)
            assert sorted(t.slot for t in tenants) == list(range(len(tenants)))
        for tenant in tenants:
            assert cache.keys[0][tenant.slot, :, :3].eq(tenant.mark).all()


def test_a_wiped_slot_holds_no_nan():
    cache = small_cache()
    cache.reserve(chunks(2, 4))
    cache.values[0][1] = torch.nan
    cache.wipe(1)
    assert cache.values[0].isfinite().all()
