"""Proposals are accepted up to the first that differs."""

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.acceptance import count_accepted

tokens = st.lists(st.integers(0, 2), max_size=6)


@given(proposal=tokens, chosen=tokens, bonus=st.integers(0, 2))
def test_the_accepted_are_the_longest_common_beginning(proposal: list[int], chosen: list[int], bonus: int):
    chosen = [*chosen, *[bonus] * (len(proposal) + 1 - len(chosen))]

    accepted = count_accepted(proposal, chosen)

    assert proposal[:accepted] == chosen[:accepted]
    assert accepted == len(proposal) or proposal[accepted] != chosen[accepted]
