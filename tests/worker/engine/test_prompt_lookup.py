"""Prompt lookup proposes what followed the last occurrence of the longest suffix that occurred before."""

from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine import Request, Sampling
from worker.engine.detokenizer import Detokenizer
from worker.engine.drafters.prompt_lookup import MAX_NGRAM, MIN_NGRAM, SURE_NGRAM, NgramIndex, PromptLookup
from worker.engine.rows import Row


def search(tokens: list[int], limit: int) -> list[int]:
    """The same, by looking everywhere."""
    for length in range(MAX_NGRAM, MIN_NGRAM - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                copied = list(tokens)
                for i in range(limit):
                    copied.append(copied[start + length + i])
                return copied[len(tokens) :]
    return []


def proposed(index: NgramIndex, tokens: list[int], limit: int) -> list[int]:
    match, follower = index.longest_match(tokens)
    assert match == 0 or MIN_NGRAM <= match <= MAX_NGRAM
    return index.continuation(tokens, limit, follower)


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    limit=st.integers(1, 8),
)
def test_an_index_grown_bit_by_bit_finds_what_a_search_finds(tokens: list[int], cuts: list[int], limit: int):
    index = NgramIndex()
    for cut in [*sorted(cuts), len(tokens)]:
        index.extend(tokens[:cut])
        assert proposed(index, tokens[:cut], limit) == search(tokens[:cut], limit)


def test_the_longest_match_wins_over_a_later_shorter_one():
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 5, 1, 2, 3]
    index = NgramIndex()
    index.extend(tokens)
    assert proposed(index, tokens, 2) == [7, 9]


def test_of_equal_matches_the_latest_wins():
    tokens = [1, 2, 7, 9, 1, 2, 8, 5, 1, 2]
    index = NgramIndex()
    index.extend(tokens)
    assert proposed(index, tokens, 2) == [8, 5]


def test_a_loop_is_continued_for_as_long_as_asked():
    tokens = [9, 1, 2, 3, 1, 2, 3, 1, 2]
    index = NgramIndex()
    index.extend(tokens)
    assert proposed(index, tokens, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_what_never_occurred_proposes_nothing():
    index = NgramIndex()
    index.extend([1, 2, 3, 4])
    assert proposed(index, [1, 2, 3, 4], 3) == []


def spliced_by_search(said: list[int], tokens: list[int]) -> list[int]:
    """Where three tokens or more occurred among those said, what followed; by looking everywhere."""
    for end in range(1, len(tokens)):
        text = [*said, *tokens[:end]]
        for length in range(MAX_NGRAM, SURE_NGRAM - 1, -1):
            for start in range(len(said) - length - 1, -1, -1):
                if said[start : start + length] == text[-length:]:
                    for i in range(len(tokens) - end):
                        text.append(text[start + length + i])
                    return text[len(said) :]
    return tokens


@settings(deadline=None)
@given(
    said=st.lists(st.integers(0, 3), min_size=1, max_size=40), tokens=st.lists(st.integers(0, 3), max_size=6)
)
def test_another_drafters_tokens_go_on_as_the_row_did_before(said: list[int], tokens: list[int]):
    lookup = PromptLookup()
    row = Row(Request("a", tuple(said), Sampling()), 0, 100, cast(Detokenizer, None), 0.0)
    lookup.propose([row], [1])
    assert lookup.spliced(row, tokens) == spliced_by_search(said, tokens)
