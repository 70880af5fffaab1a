"""Prompt lookup proposes what followed the last occurrence of the longest suffix that occurred before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.drafters.prompt_lookup import MAX_NGRAM, MIN_NGRAM, NgramIndex


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
