"""The suffix drafter proposes what followed in the outputs of rows that ended; its memory is bounded."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.running import SEEDED, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Request, Sampling
from worker.engine.drafters.corpus import MIN_MATCH, Corpus

Folders = Callable[[Kind], Path]
texts = st.lists(st.lists(st.integers(0, 2), max_size=25), max_size=4)


def longest(past: list[list[int]], text: list[int]) -> int:
    """The longest suffix of `text` that occurs in one text of the past, by looking everywhere."""
    for length in range(len(text), MIN_MATCH - 1, -1):
        for old in past:
            if any(old[i : i + length] == text[-length:] for i in range(len(old) - length + 1)):
                return length
    return 0


@settings(deadline=None)
@given(past=texts, text=st.lists(st.integers(0, 2), max_size=12))
def test_what_is_found_is_a_suffix_of_the_text_with_what_followed_it(past: list[list[int]], text: list[int]):
    corpus = Corpus(1 << 10)
    for old in past:
        corpus.add(old)
    length, place = corpus.find(text)
    following = corpus.read(place, 3) if length else []
    assert (length == 0) == (longest(past, text) == 0)
    if length:
        known = [*text[-length:], *following]
        assert any(known == old[i : i + len(known)] for old in past for i in range(len(old)))


def test_the_longest_match_wins():
    corpus = Corpus(1 << 10)
    corpus.add([1, 2, 3, 4, 5, 6])
    corpus.add([9, 3, 4, 5, 7])
    assert corpus.find([0, 1, 2, 3, 4, 5]) == (5, 6)
    assert corpus.read(6, 4) == [6]
    assert corpus.find([8, 3, 4, 5])[0] == 3


def test_no_match_and_no_continuation_crosses_two_texts():
    corpus = Corpus(1 << 10)
    corpus.add([1, 2, 3])
    corpus.add([4, 5, 6])
    assert corpus.find([2, 3, 4]) == (0, 0)
    length, place = corpus.find([1, 2, 3])
    assert (length, corpus.read(place, 5)) == (3, [])


def test_the_oldest_is_overwritten_and_nothing_grows():
    corpus = Corpus(1 << 8)
    noise = random.Random(1)
    first = [noise.randrange(1000) for _ in range(40)]
    corpus.add(first)
    assert corpus.find(first[:20])[0] == 20
    for _ in range(20):
        text = [noise.randrange(1000) for _ in range(40)]
        corpus.add(text)
        assert corpus.find(text[:20])[0] == 20
    assert corpus.find(first[:20]) == (0, 0)
    assert [len(part) for part in (corpus._tokens, corpus._earlier, corpus._newest)] == [256] * 3


def test_a_text_longer_than_the_corpus_leaves_its_end():
    corpus = Corpus(1 << 4)
    corpus.add(list(range(100)))
    assert corpus.find([90, 91, 92]) != (0, 0)
    assert corpus.find([50, 51, 52]) == (0, 0)


def test_a_capacity_that_is_no_power_of_two_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        Corpus(1000)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_every_output_teaches_those_that_come_after_and_changes_none(kind: Kind, target_folder: Folders):
    requests = make_requests(10, SEEDED)
    expected = outputs(generations(Engine(make_pair(target_folder(kind))), requests))
    engine = Engine(make_pair(target_folder(kind), "suffix"))

    first, again = generations(engine, requests), generations(engine, requests)

    assert outputs(first) == outputs(again) == expected
    accepted = [sum(g.num_accepted_draft_tokens for g in results.values()) for results in (first, again)]
    assert accepted[1] > 100 > accepted[0]
    assert {g.method for g in again.values()} == {"suffix"}


def test_a_row_that_repeats_itself_is_followed_as_by_prompt_lookup(target_folder: Folders):
    request = Request(0, (7, 8, 9, 10, 11) * 6, Sampling(max_tokens=30))
    by_lookup = generations(Engine(make_pair(target_folder("qwen3"), "prompt_lookup")), [request])[0]
    by_suffix = generations(Engine(make_pair(target_folder("qwen3"), "suffix")), [request])[0]
    assert by_suffix.acceptance_histogram == by_lookup.acceptance_histogram
