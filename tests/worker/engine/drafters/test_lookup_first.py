"""Lookup costs nothing: the network is asked where it usually promises more, and the better one is taken."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch

from tests.worker.engine.running import GREEDY
from worker.engine import Request, Sampling
from worker.engine.constraints import make_constraints
from worker.engine.detokenizer import Detokenizer
from worker.engine.drafters import (
    Draft,
    Drafter,
    DSparkDrafter,
    GuardedDrafter,
    LookupFirst,
    PromptLookup,
    Proposal,
    Refusal,
)
from worker.engine.rows import Row


class Fixed:
    """Answers the same each time; notes which rows it was asked about."""

    taps = (1,)

    def __init__(self, answers: dict[object, Proposal]) -> None:
        self.answers, self.asked = answers, list[list[object]]()

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:  # noqa: ARG002 (protocol)
        self.asked.append([row.request.id for row in rows])
        return [self.answers[row.request.id] for row in rows]

    def observe(self, *_: object) -> None:
        self.asked.append(["shown"])

    def forget(self, row: Row) -> None:
        self.asked.append(["forgot", row.request.id])


class FixedLookup(Fixed):
    def spliced(self, row: Row, tokens: Sequence[int]) -> list[int]:  # noqa: ARG002 (a lookup's)
        return list(tokens)


def make_rows(*names: str) -> list[Row]:
    return [Row(Request(n, (5,), GREEDY), 0, 50, cast(Detokenizer, None), 0.0) for n in names]


def mixed(lookup: dict[object, Proposal], network: dict[object, Proposal]) -> tuple[LookupFirst, Fixed]:
    """A proposal promises as many accepted tokens as its match says."""
    asked = Fixed(network)
    first = cast(PromptLookup, FixedLookup(lookup))
    return LookupFirst(first, cast(DSparkDrafter, asked), lambda _, draft: draft.match, 4), asked


def test_a_row_whose_lookup_promises_more_than_the_network_usually_does_is_not_asked_about() -> None:
    lookup: dict[object, Proposal] = {"copies": Draft([1, 2], 4), "new": Draft([]), "weak": Draft([3], 1)}
    network: dict[object, Proposal] = {name: Draft([9, 9, 9], 2) for name in lookup}
    drafter, asked = mixed(lookup, network)
    rows = make_rows("copies", "new", "weak")

    first = drafter.propose(rows, [5, 5, 5])
    second = drafter.propose(rows, [5, 5, 5])

    assert asked.asked == [["copies", "new", "weak"], ["new", "weak"]], "at first nothing is known"
    assert first == second == [lookup["copies"], network["new"], network["weak"]]


def test_a_network_with_nothing_to_say_leaves_the_lookups_proposal_and_a_refusal_stands() -> None:
    lookup: dict[object, Proposal] = {"end": Draft([1], 1), "ill": Draft([1], 1)}
    refusal = Refusal("not finite")
    drafter, _ = mixed(lookup, {"end": (), "ill": refusal})
    assert drafter.propose(make_rows("end", "ill"), [5, 5]) == [lookup["end"], refusal]


def test_the_network_sees_the_target_and_both_forget() -> None:
    drafter, network = mixed({}, {})
    rows = make_rows("a")
    assert drafter.taps == (1,)
    drafter.observe(rows, [], torch.empty(0), torch.empty(0))
    drafter.forget(rows[0])
    assert network.asked == [["shown"], ["forgot", "a"]]


def test_a_row_that_the_network_is_too_dear_for_gets_what_is_looked_up() -> None:
    lookup: dict[object, Proposal] = {"copies": Draft([1, 2, 3, 4, 5], 4), "new": Draft([])}
    drafter, network = mixed(lookup, {"copies": Draft([9], 9), "new": Draft([9], 9)})
    rows = make_rows("copies", "new")

    drafts = GuardedDrafter(cast(Drafter, drafter), 320).propose(rows, [0, 0])

    assert [list(draft.tokens) for draft in drafts] == [[1, 2, 3, 4], []], "no more than gamma"
    assert network.asked == [[]]
    others = GuardedDrafter(cast(Drafter, Fixed(lookup)), 320).propose(rows, [0, 0])
    assert [list(draft.tokens) for draft in others] == [[], []], "what costs something is not asked"


@pytest.mark.parametrize(
    ("sampling", "proposed"),
    [
        pytest.param(GREEDY, [3, 4, 5, 6, 7], id="greedy"),
        pytest.param(replace(GREEDY, temperature=0.8), [3, 4, 9, 9, 9], id="sampled"),
        pytest.param(replace(GREEDY, frequency_penalty=1.0), [3, 4, 9, 9, 9], id="penalised"),
    ],
)
def test_what_the_network_says_goes_on_as_it_did_before(sampling: Sampling, proposed: list[int]) -> None:
    """Where noise or penalties count, it goes on as the network says, which knows them."""
    request = Request("a", (2, 3, 4, 5, 6, 7, 8, 1, 2), sampling)
    row = Row(request, 0, 50, cast(Detokenizer, None), 0.0, make_constraints(request, (), None))
    network = cast(DSparkDrafter, Fixed({"a": Draft([3, 4, 9, 9, 9], confidence=(1.0,) * 5)}))
    drafter = LookupFirst(PromptLookup(), network, lambda _, draft: len(draft.confidence), 5)

    (draft,) = drafter.propose([row], [5])

    assert isinstance(draft, Draft)
    assert list(draft.tokens) == proposed
