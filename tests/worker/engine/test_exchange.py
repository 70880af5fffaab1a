"""One engine, several drafters and planners: weights are loaded once, and the text stays the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.engine.running import SEEDED, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, EngineError
from worker.engine.drafters import NoDrafter, PromptLookup
from worker.engine.planner import VerifyAll

Folders = Callable[[Kind], Path]


def test_what_an_engine_works_with_can_be_exchanged_and_put_back(
    target_folder: Folders, draft_folder: Folders
) -> None:
    requests = make_requests(6, SEEDED)
    pair = make_pair(target_folder("llama"), "draft_model", draft_folder("llama"))
    engine = Engine(pair)
    drafted = generations(engine, requests)
    own = engine.exchange(NoDrafter(), VerifyAll(4))
    plain = generations(engine, requests)
    engine.exchange(PromptLookup(), VerifyAll(2))
    looked_up = generations(engine, requests)
    engine.exchange(*own)
    again = generations(engine, requests)
    assert outputs(plain) == outputs(drafted) == outputs(looked_up) == outputs(again)
    assert {g.num_draft_tokens for g in plain.values()} == {0}
    assert own[0] is engine.exchange(NoDrafter(), VerifyAll(4))[0], "not wrapped once more"
    assert {key: g.acceptance_histogram for key, g in again.items()} == {
        key: g.acceptance_histogram for key, g in drafted.items()
    }, "its own drafter is at work again"


def test_nothing_is_exchanged_under_a_running_row(target_folder: Folders) -> None:
    engine = Engine(make_pair(target_folder("llama")))
    engine.submit(make_requests(1, SEEDED)[0])
    with pytest.raises(EngineError, match="busy"):
        engine.exchange(NoDrafter(), VerifyAll(4))
