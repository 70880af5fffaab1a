"""Every plan gives the same text: at random, at the planner's own choice, or without drafting at all."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worker.engine.running import GREEDY, SEEDED, Oracle, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Generation
from worker.engine.drafters import Draft
from worker.engine.planner import AdaptivePlanner, VerifyAll
from worker.engine.planner.survival import Stream
from worker.engine.types import Method

Folders = Callable[[Kind], Path]


class RandomPlanner(VerifyAll):
    """Asks for some rows and verifies some of what it gets, as drawn."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__(4)
        self._choices = choices
        self._made = 0

    def draft_limits(
        self,
        rows: Sequence[Stream],
        speculation: bool,
        remaining: Sequence[int] | None = None,  # noqa: ARG002 (at random)
    ) -> list[int] | None:
        return [self._choose(4) if speculation else 0 for _ in rows]

    def verify_lengths(
        self,
        rows: Sequence[Stream],  # noqa: ARG002 (at random)
        drafts: Sequence[Draft],
        draft_seconds: float,  # noqa: ARG002 (part of the protocol)
    ) -> list[int]:
        return [self._choose(len(draft.tokens)) for draft in drafts]

    def _choose(self, most: int) -> int:
        self._made += 1
        return self._choices[self._made % len(self._choices)] % (most + 1)


@pytest.fixture(scope="module")
def plain(target_folder: Folders) -> Callable[[Kind], dict[object, Generation]]:
    requests = make_requests(6, SEEDED)
    return cache(lambda kind: generations(Engine(make_pair(target_folder(kind))), requests))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    choices=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    true=st.lists(st.integers(0, 4), min_size=1, max_size=9),
)
def test_random_plans_over_proposals_right_and_wrong_change_nothing(
    kind: Kind,
    choices: list[int],
    true: list[int],
    plain: Callable[[Kind], dict[object, Generation]],
    target_folder: Folders,
):
    expected = plain(kind)
    oracle = Oracle({key: g.token_ids for key, g in expected.items()}, true)
    engine = Engine(make_pair(target_folder(kind)), oracle, RandomPlanner(choices))
    assert outputs(generations(engine, make_requests(6, SEEDED))) == outputs(expected)


@pytest.mark.parametrize("method", ["prompt_lookup", "suffix", "draft_model"])
def test_the_planner_s_own_plans_change_nothing(
    method: Method, target_folder: Folders, draft_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker.engine.drafters.prompt_lookup.MIN_NGRAM", 1)  # random text repeats little
    requests = make_requests(12, GREEDY)
    expected = outputs(generations(Engine(make_pair(target_folder("llama"))), requests))
    draft = draft_folder("llama") if method == "draft_model" else None
    engine = Engine(make_pair(target_folder("llama"), method, draft), planner=AdaptivePlanner(4))
    for _ in range(2):
        assert outputs(generations(engine, requests)) == expected


def test_the_kill_switch_takes_effect_at_the_next_step(target_folder: Folders):
    requests = make_requests(4, GREEDY)
    plain = generations(Engine(make_pair(target_folder("llama"))), requests)
    oracle = Oracle({key: g.token_ids for key, g in plain.items()}, [4])
    engine = Engine(make_pair(target_folder("llama")), oracle)
    for request in requests:
        engine.submit(request)
    engine.step()  # the prompts
    engine.step()
    engine.speculation = False

    results: list[Generation] = []
    while engine.busy:
        results += [result for result in engine.step() if isinstance(result, Generation)]

    assert {g.request_id: g.token_ids for g in results} == {key: g.token_ids for key, g in plain.items()}
    assert {g.num_spec_steps for g in results} == {1}
