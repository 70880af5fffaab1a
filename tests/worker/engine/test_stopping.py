"""Stop strings over text in pieces, against the plain rule applied character by character."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.stopping import StopMatcher


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, int | None]:
    """The text, and the piece that stopped it."""
    matcher = StopMatcher(stops)
    for index, piece in enumerate(pieces):
        if matcher.push(piece):
            return matcher.text, index
    return matcher.text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped_by"),
    [
        ((), ["a", "b"], "ab", None),
        (("",), ["a"], "a", None),
        (("END",), ["some E", "N", "D"], "some ", 2),  # spans pieces
        (("\n",), ["one", "\ntwo"], "one", 1),  # the rest of the piece is dropped
        (("c", "abcd"), ["ab", "cd"], "ab", 1),  # "c" is complete before "abcd", which began earlier
        (("bc", "abc"), ["abc"], "", 0),  # completed together: the longest
        (("aab",), ["a", "a", "a", "b"], "a", 3),  # a false start
        (("stop",), ["", "st", "", "op!"], "", 3),
    ],
)
def test_the_first_completed_stop_string_ends_the_text(
    stops: Sequence[str], pieces: Sequence[str], text: str, stopped_by: int | None
) -> None:
    assert run(stops, pieces) == (text, stopped_by)


def test_nothing_is_added_after_the_stop() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb")
    assert matcher.push("more")
    assert matcher.text == "a"


letters = st.text(alphabet="abé", max_size=4)


@given(st.lists(letters.filter(bool), max_size=3), st.lists(letters, max_size=12))
def test_pieces_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    """The same as looking for an ending stop string after each character, however the text comes."""
    whole = "".join(pieces)
    for length in range(len(whole) + 1):
        ending = [stop for stop in stops if whole[:length].endswith(stop)]
        if ending:
            expected = whole[: length - max(map(len, ending))]
            break
    else:
        expected, length = whole, None
    text, stopped_by = run(stops, pieces)
    assert text == expected
    if length is None:
        assert stopped_by is None
    else:
        before = [sum(map(len, pieces[:index])) for index in range(len(pieces) + 1)]
        assert stopped_by is not None
        assert before[stopped_by] < length <= before[stopped_by + 1]
