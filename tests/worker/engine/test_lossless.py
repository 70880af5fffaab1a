"""Speculation changes nothing: the tokens of plain decoding, whatever drafts, whoever else runs."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.engine.running import (
    GREEDY,
    SEEDED,
    Oracle,
    generations,
    make_pair,
    make_requests,
    outputs,
)
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Request, Sampling
from worker.engine.types import Method

KINDS: list[Kind] = ["llama", "qwen3", "gemma3"]
Folders = Callable[[Kind], Path]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("method", ["prompt_lookup", "draft_model"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_batch_with_a_drafter_says_what_each_prompt_says_alone_without(
    kind: Kind,
    method: Method,
    sampling: Sampling,
    target_folder: Folders,
    draft_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("worker.engine.drafters.prompt_lookup.MIN_NGRAM", 1)  # random text repeats little
    requests = make_requests(12, sampling)
    alone = Engine(make_pair(target_folder(kind)))
    expected = {request.id: outputs(generations(alone, [request]))[request.id] for request in requests}

    engine = Engine(make_pair(target_folder(kind), method, draft_folder(kind)))
    results = generations(engine, requests)

    assert outputs(results) == expected
    assert sum(g.num_accepted_draft_tokens for g in results.values()) >= 5
    assert {g.spec_disabled_reason for g in results.values()} == {None}


@pytest.mark.parametrize("method", ["none", "prompt_lookup", "draft_model"])
def test_order_and_neighbours_do_not_matter(method: Method, target_folder: Folders, draft_folder: Folders):
    requests = make_requests(10, SEEDED)
    engine = Engine(make_pair(target_folder("llama"), method, draft_folder("llama")))
    expected = outputs(generations(engine, requests))

    for seed in range(3):
        shuffled = random.Random(seed).sample(requests, k=7)
        assert outputs(generations(engine, shuffled)) == {r.id: expected[r.id] for r in shuffled}
    assert outputs(generations(engine, requests[3:4])) == {3: expected[3]}


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_is_always_wrong_changes_nothing(
    kind: Kind, sampling: Sampling, target_folder: Folders
):
    requests = make_requests(8, sampling)
    plain = generations(Engine(make_pair(target_folder(kind))), requests)
    tokens = {key: g.token_ids for key, g in plain.items()}

    results = generations(Engine(make_pair(target_folder(kind)), Oracle(tokens, [0])), requests)

    assert outputs(results) == outputs(plain)
    assert sum(g.num_draft_tokens for g in results.values()) > 100
    assert {g.num_accepted_draft_tokens for g in results.values()} == {0}
    assert [g.num_steps for g in results.values()] == [g.num_steps for g in plain.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_proposals_right_up_to_any_place_change_nothing(kind: Kind, target_folder: Folders):
    requests = make_requests(8, SEEDED)
    plain = generations(Engine(make_pair(target_folder(kind))), requests)
    tokens = {key: g.token_ids for key, g in plain.items()}

    oracle = Oracle(tokens, [3, 0, 4, 1, 2, 4, 0])
    results = generations(Engine(make_pair(target_folder(kind)), oracle), requests)

    assert outputs(results) == outputs(plain)


def test_a_drafter_that_is_always_right_needs_a_fraction_of_the_steps(target_folder: Folders):
    [request] = make_requests(1, GREEDY)
    plain = generations(Engine(make_pair(target_folder("llama"))), [request])[0]
    engine = Engine(make_pair(target_folder("llama")), Oracle({0: plain.token_ids}, [4]))

    fast = generations(engine, [request])[0]

    assert fast.token_ids == plain.token_ids
    assert len(plain.token_ids) == 40
    assert (plain.num_steps, fast.num_steps) == (
        39,
        8,
    )  # the first token is the prefill's; 5 come out of each step


def test_samples_of_one_prompt_differ_and_repeat(target_folder: Folders):
    engine = Engine(make_pair(target_folder("qwen3"), "prompt_lookup"))
    prompt = make_requests(1, SEEDED)[0].token_ids
    requests = [Request(i, prompt, SEEDED, sample_index=i) for i in range(6)]

    first, again = generations(engine, requests), generations(engine, requests[::-1])

    assert outputs(first) == outputs(again)
    assert len({g.token_ids for g in first.values()}) == 6


def test_the_seed_counts_in_all_its_63_bits(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    prompt = make_requests(1, SEEDED)[0].token_ids
    seeds = [0, 1, 1 << 32, 1 << 62, (1 << 63) - 1]
    requests = [Request(s, prompt, Sampling(temperature=1.0, max_tokens=10, seed=s)) for s in seeds]

    assert len({g.token_ids for g in generations(engine, requests).values()}) == len(seeds)
