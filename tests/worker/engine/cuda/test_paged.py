"""A cache in pages changes nothing: the text of one contiguous slot a row, with every drafter and model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worker.engine.cuda.paging import use_kernel, use_pages
from tests.worker.engine.running import SEEDED, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Request
from worker.engine.cache import CacheFull, Chunk, LayerShape
from worker.engine.cuda.paged import PagedCache
from worker.engine.types import Method

KINDS: list[Kind] = ["llama", "qwen3", "gemma3"]
Folders = Callable[[Kind], Path]
SHORT = replace(SEEDED, max_tokens=20)


@pytest.mark.parametrize("method", ["none", "prompt_lookup", "suffix", "draft_model"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_pages_say_what_they_say_in_slots(
    kind: Kind,
    method: Method,
    target_folder: Folders,
    draft_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("worker.engine.drafters.prompt_lookup.MIN_NGRAM", 1)  # random text repeats little
    requests = make_requests(5, SHORT)
    pair = make_pair(target_folder(kind), method, draft_folder(kind))
    expected = outputs(generations(Engine(pair), requests))

    use_pages(monkeypatch)
    assert outputs(generations(Engine(pair), requests)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rows_read_from_their_pages_say_the_same(
    kind: Kind, target_folder: Folders, draft_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    requests = make_requests(5, SHORT)
    pair = make_pair(target_folder(kind), "draft_model", draft_folder(kind))
    expected = outputs(generations(Engine(pair), requests))

    use_pages(monkeypatch)
    use_kernel(monkeypatch)
    monkeypatch.setattr("worker.engine.target.graphs_for", lambda *_: None)  # a GPU's own
    assert outputs(generations(Engine(pair), requests)) == expected


@pytest.mark.parametrize("read_in_place", [False, True], ids=["gathered", "in place"])
def test_prompts_that_begin_alike_share_pages_and_say_what_they_say(
    read_in_place: bool, target_folder: Folders, draft_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    common = make_requests(1, SHORT)[0].token_ids * 2
    requests = [Request(i, (*common, *[10 + i] * i), SHORT) for i in range(1, 8)]
    pair = make_pair(target_folder("llama"), "draft_model", draft_folder("llama"), max_rows=3)
    expected = outputs(generations(Engine(pair), requests))

    use_pages(monkeypatch)
    if read_in_place:
        use_kernel(monkeypatch)
        monkeypatch.setattr("worker.engine.target.graphs_for", lambda *_: None)
    results = generations(Engine(pair), requests)

    assert outputs(results) == expected
    assert sum(result.cached_tokens for result in results.values()) >= 4 * len(common)


def small_cache(max_bytes: int | None = None) -> PagedCache:
    """3 slots of up to 10 tokens, in pages of 4; 64 bytes a token and layer."""
    return PagedCache([LayerShape(2, 2, 2)] * 2, 3, 10, torch.float64, "cpu", max_bytes, page_tokens=4)


def chunk(slot: int, start: int, length: int) -> Chunk:
    return Chunk(slot, start, [0] * length, 0)


def test_bytes_decide_how_many_pages_there_are():
    assert small_cache().longest == 10
    assert small_cache().fits({0: 10, 1: 10, 2: 10})

    cache = small_cache(max_bytes=4 * (4 * 2 * 64))  # one of them for padding
    assert cache.longest == 10
    assert cache.fits({0: 8, 1: 4})
    assert not cache.fits({0: 8, 1: 5})
    assert small_cache(max_bytes=1).fits({0: 10})
    assert not small_cache(max_bytes=1).fits({0: 9, 1: 1})
    cache.reserve([chunk(0, 0, 9)])
    with pytest.raises(CacheFull):
        cache.reserve([chunk(1, 0, 1)])
    cache.free(0)
    cache.reserve([chunk(1, 0, 10)])


def test_a_wiped_page_harms_nobody_who_gets_it_next():
    cache = small_cache()
    cache.reserve([chunk(0, 0, 6)])
    for page in cache.pages.of(0):
        cache.store.values[1][page] = torch.nan
    cache.wipe(0)
    assert all(values.isfinite().all() for values in cache.store.values)


def test_a_shared_beginning_is_read_by_both_and_written_by_neither():
    cache = small_cache()
    cache.reserve([chunk(0, 0, 6)])
    for place, page in enumerate(cache.pages.of(0)):
        cache.store.keys[0][page] = place + 1.0

    cache.share(0, 1, 6)
    assert cache.pages.of(1)[0] == cache.pages.of(0)[0]
    cache.store.keys[0][cache.pages.of(0)[1]] = 9.0  # the owner goes on
    cache.free(0)

    assert [float(cache.store.keys[0][page].mean()) for page in cache.pages.of(1)] == [1.0, 2.0]
