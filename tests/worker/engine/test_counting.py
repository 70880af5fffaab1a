"""What is counted and timed about each sample."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

from tests.worker.engine.running import GREEDY, Oracle, generations, make_pair, make_requests
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Sampling
from worker.engine.types import Method

Folders = Callable[[Kind], Path]


@pytest.mark.parametrize("method", ["none", "prompt_lookup", "draft_model"])
def test_counters_agree_with_each_other_and_with_the_clock(
    method: Method, target_folder: Folders, draft_folder: Folders
):
    engine = Engine(make_pair(target_folder("llama"), method, draft_folder("llama")))
    began = perf_counter()
    results = generations(engine, make_requests(12, GREEDY))
    elapsed = perf_counter() - began

    for g in results.values():
        assert g.method == method
        assert g.completion_tokens == len(g.token_ids) <= 40
        assert sum(g.acceptance_histogram) == g.num_spec_steps <= g.num_steps
        assert sum(k * n for k, n in enumerate(g.acceptance_histogram)) == g.num_accepted_draft_tokens
        assert g.num_accepted_draft_tokens <= g.num_draft_tokens <= 4 * g.num_spec_steps
        # The prefill gives one token, each step one more than it accepts (one may end with an accepted EOS).
        assert g.num_steps + g.num_accepted_draft_tokens - (g.completion_tokens - 1) in (0, 1)
        assert 1 <= g.rows_in_flight <= 8
        assert 0 < g.prefill_seconds <= g.first_token_seconds
        assert g.decode_seconds >= 0
        assert g.waited_seconds + g.first_token_seconds + g.decode_seconds <= elapsed
    if method == "none":
        assert {(g.num_spec_steps, g.num_draft_tokens) for g in results.values()} == {(0, 0)}
    else:
        assert sum(g.num_draft_tokens for g in results.values()) > 0
    assert (
        max(g.waited_seconds for g in results.values()) > min(g.decode_seconds for g in results.values()) / 2
    )


def test_the_histogram_counts_steps_by_tokens_accepted(target_folder: Folders):
    [request] = make_requests(1, GREEDY)
    plain = generations(Engine(make_pair(target_folder("llama"))), [request])[0]
    engine = Engine(make_pair(target_folder("llama")), Oracle({0: plain.token_ids}, [4, 0, 2, 2]))

    g = generations(engine, [request])[0]

    # 39 tokens after the first, 12 in each round of four steps; then 3 more: 2 proposed, clipped, all true.
    assert g.num_steps == g.num_spec_steps == 13
    assert g.acceptance_histogram == (3, 0, 7, 0, 3)
    assert (g.num_draft_tokens, g.num_accepted_draft_tokens) == (12 * 4 + 2, 3 * 8 + 2)


def test_rows_in_flight_is_the_mean_over_a_sample_s_steps(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    short, long = make_requests(2, Sampling(max_tokens=5)), make_requests(1, Sampling(max_tokens=21))[0]

    both = generations(engine, [short[1], long])

    assert both[1].rows_in_flight == 2
    assert both[0].rows_in_flight == (4 * 2 + 16 * 1) / 20


def test_a_sample_of_one_token_has_no_steps(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup"))

    results = generations(engine, make_requests(3, Sampling(max_tokens=1)))

    for g in results.values():
        assert (g.completion_tokens, g.num_steps, g.num_spec_steps, g.acceptance_histogram) == (1, 0, 0, ())
        assert (g.decode_seconds, g.rows_in_flight) == (0, 3)
