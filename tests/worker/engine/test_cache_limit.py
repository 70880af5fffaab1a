"""The caches never exceed their limit, and whoever does not fit waits; nobody's text changes by it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.engine.running import SEEDED, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Generation, Request, Sampling
from worker.engine.contiguous import ContiguousCache
from worker.engine.types import Method

Folders = Callable[[Kind], Path]
# Of one token in float64: two layers, keys and values, two heads of 8.
PER_TOKEN = 2 * 2 * 2 * 8 * 8
CONTEXT = 120


def limit(engine: Engine, tokens: int) -> ContiguousCache:
    """Give the target's cache room for so many tokens: less than a pair can ask for."""
    cache = engine._target.cache
    assert isinstance(cache, ContiguousCache)
    cache._max_tokens = tokens
    return cache


def size(cache: ContiguousCache) -> int:
    """Bytes."""
    return sum(buffer.numel() * buffer.element_size() for buffer in (*cache.keys, *cache.values))


@pytest.mark.parametrize("method", ["none", "prompt_lookup", "draft_model"])
@pytest.mark.parametrize("tokens", [CONTEXT, 2 * CONTEXT + 7, 4 * CONTEXT])
def test_every_prompt_gets_its_text_within_it(
    method: Method, tokens: int, target_folder: Folders, draft_folder: Folders
):
    requests = make_requests(9, SEEDED)
    folder = target_folder("llama")
    expected = outputs(generations(Engine(make_pair(folder, context_limit=CONTEXT)), requests))
    engine = Engine(make_pair(folder, method, draft_folder("llama"), context_limit=CONTEXT))
    cache = limit(engine, tokens)
    for request in requests:
        engine.submit(request)
    results: dict[object, object] = {}
    most_rows = 0
    while engine.busy:
        results |= {result.request_id: result for result in engine.step()}
        most_rows = max(most_rows, engine.rows_in_flight)
        assert size(cache) <= tokens * PER_TOKEN

    assert outputs(results) == expected  # type: ignore[arg-type] # a failure among them has no outputs
    assert (most_rows > 1) == (tokens > CONTEXT)


def test_a_row_that_makes_room_keeps_what_it_said(target_folder: Folders):
    sampling = Sampling(max_tokens=80, min_tokens=80, seed=3, temperature=1.0)
    requests = [Request(i, (5 + i, 6, 7), sampling) for i in range(3)]
    plain = generations(Engine(make_pair(target_folder("llama"))), requests)
    engine = Engine(make_pair(target_folder("llama")))
    limit(engine, 3 * 70)
    for request in requests:
        engine.submit(request)
    results: dict[object, Generation] = {}
    has_waited = False
    while engine.busy:
        results |= {r.request_id: r for r in engine.step() if isinstance(r, Generation)}
        has_waited = has_waited or any(row.num_output for row in engine._preempted)

    assert has_waited
    assert outputs(results) == outputs(plain)
    assert {len(g.token_ids) for g in results.values()} == {80}
    # Nothing was said twice: a step for each token but the first.
    assert [g.num_steps for g in results.values()] == [79, 79, 79]


def test_what_rows_left_behind_makes_room_first(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), max_rows=4))
    limit(engine, 256)
    generations(engine, [Request(i, (5 + i,) * 40, Sampling(max_tokens=2)) for i in range(4)])

    [long] = generations(engine, [Request(0, (9,) * 200, Sampling(max_tokens=2))]).values()

    assert (long.completion_tokens, long.cached_tokens) == (2, 0)
