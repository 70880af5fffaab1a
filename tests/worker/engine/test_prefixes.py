"""The index finds exactly what a look at every sequence would find."""

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.prefixes import BLOCK, Prefixes

# Long beginnings in common, by few choices a block; then tokens of few kinds.
Blocks = st.lists(st.integers(0, 1), max_size=4)
Sequences = st.builds(
    lambda blocks, rest: [b for b in blocks for _ in range(BLOCK)] + rest,
    Blocks,
    st.lists(st.integers(0, 1), max_size=BLOCK + 3),
)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(
    st.lists(st.tuples(st.integers(0, 5), Sequences, st.integers(0, 80)), max_size=15),
    st.lists(Sequences, min_size=1, max_size=5),
)
def test_the_longest_common_beginning_is_found(
    events: list[tuple[int, list[int], int]], queries: list[list[int]]
):
    """An event notes a sequence's first tokens under a key, or forgets the key if there are none."""
    index: Prefixes[int] = Prefixes()
    known: dict[int, list[int]] = {}
    for key, tokens, length in events:
        known[key] = tokens[:length]
        if known[key]:
            index.note(key, tokens, len(known[key]))
        else:
            index.forget(key)
    for query in [*queries, *known.values()]:
        expected = max((common(query[:-1], tokens) for tokens in known.values()), default=0)
        key, length = index.find(query)
        assert length == (expected if expected >= BLOCK else 0)
        assert (key is None) == (length == 0)
        if key is not None:
            assert common(query[:-1], known[key]) == length


def test_what_grew_meanwhile_counts_once_it_is_noted():
    index: Prefixes[str] = Prefixes()
    tokens = list(range(BLOCK + 2))
    index.note("row", tokens, len(tokens))
    tokens += [7, 8, 9]
    longer = [*tokens, 1]

    assert index.find(longer) == ("row", BLOCK + 2)
    index.note("row", tokens, len(tokens))
    assert index.find(longer) == ("row", BLOCK + 5)


def test_another_name_takes_over_no_more_than_it_has():
    index: Prefixes[int] = Prefixes()
    tokens = list(range(100))
    index.note(1, tokens, 90)
    index.note(2, tokens, 50)
    index.rename(1, 2, most=70)

    assert 1 not in index
    assert index.find(tokens) == (2, 70)
