"""Requests come and go: waiting, cancelled, impossible, broken; none of them disturbs the others."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.running import (
    GREEDY,
    SEEDED,
    generations,
    make_pair,
    make_requests,
    outputs,
    run,
)
from tests.worker.engine.tiny import Kind, save_tiny_model
from worker.engine import Engine, Failure, Request, Sampling
from worker.engine.detokenizer import Detokenizer
from worker.engine.drafters import Proposal, Refusal
from worker.engine.rows import Row

Folders = Callable[[Kind], Path]


def test_more_requests_than_rows_wait_their_turn(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), max_rows=3))
    for request in make_requests(7, GREEDY):
        engine.submit(request)
    assert (engine.num_waiting, engine.rows_in_flight, engine.busy) == (7, 0, True)

    engine.step()

    assert (engine.num_waiting, engine.rows_in_flight) == (4, 3)
    while engine.busy:
        engine.step()
        assert engine.rows_in_flight <= 3


def test_requests_may_be_submitted_while_others_run(target_folder: Folders):
    requests = make_requests(9, SEEDED)
    expected = outputs(generations(Engine(make_pair(target_folder("qwen3"))), requests))
    engine = Engine(make_pair(target_folder("qwen3"), "prompt_lookup", max_rows=4))
    results: dict[object, Any] = {}
    coming = list(requests)
    while engine.busy or coming:
        if coming:
            engine.submit(coming.pop())
        results |= {result.request_id: result for result in engine.step()}

    assert outputs(results) == expected


def test_cancel_drops_all_samples_of_a_request_and_leaves_the_others(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup", max_rows=3))
    requests = make_requests(6, SEEDED)
    expected = outputs(generations(engine, requests))
    second = Request(0, requests[0].token_ids, SEEDED, sample_index=1)
    for request in [requests[0], *requests, second]:  # running, and waiting
        engine.submit(request)
    results: dict[object, Any] = {}
    for _ in range(5):
        results |= {result.request_id: result for result in engine.step()}

    engine.cancel(0)
    engine.cancel(4)
    engine.cancel("unknown")
    while engine.busy:
        results |= {result.request_id: result for result in engine.step()}

    assert outputs(results) == {key: expected[key] for key in (1, 2, 3, 5)}


@pytest.mark.parametrize(
    ("tokens", "sampling", "code", "message"),
    [
        ([5] * 50, GREEDY, "prompt_too_long", "50 tokens.* context of 50.* at most 49"),
        ([5] * 60, GREEDY, "prompt_too_long", "60 tokens"),
        ([], GREEDY, "empty_prompt", "the prompt is empty"),
        ([5, 320], GREEDY, "bad_token", "token 320 .* 320 tokens"),
        ([5, -1], GREEDY, "bad_token", "token -1"),
        ([5], Sampling(max_tokens=0), "bad_max_tokens", "max_tokens is 0"),
    ],
)
def test_a_request_that_can_never_run_fails_by_name(
    tokens: Sequence[int], sampling: Sampling, code: str, message: str, target_folder: Folders
):
    engine = Engine(make_pair(target_folder("llama"), context_limit=50))
    good = make_requests(2, Sampling(max_tokens=3), longest=20)

    results = run(engine, [good[0], Request("bad", tuple(tokens), sampling), good[1]])

    failure = results.pop("bad")
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == (code, False)
    assert re.search(message, failure.message)
    assert results.keys() == {0, 1}


def test_the_longest_prompt_that_fits_gets_one_token(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), context_limit=50))

    [g] = generations(engine, [Request(0, (7,) * 49, GREEDY)]).values()

    assert (g.completion_tokens, g.finish_reason) == (1, "length")


def test_a_row_that_cannot_be_processed_fails_alone(target_folder: Folders, monkeypatch: pytest.MonkeyPatch):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup"))
    requests = make_requests(6, SEEDED)
    expected = generations(engine, requests)
    fatal = expected[2].token_ids[10]
    survivors = {k: v for k, v in outputs(expected).items() if fatal not in expected[k].token_ids}
    push = Detokenizer.push

    def broken_push(self: Detokenizer, token_id: int) -> str:
        if token_id == fatal:
            raise KeyError("this token cannot be spelt")
        return push(self, token_id)

    monkeypatch.setattr(Detokenizer, "push", broken_push)
    results = run(engine, requests)

    failures = [r for r in results.values() if isinstance(r, Failure)]
    assert 2 in {f.request_id for f in failures}
    assert {(f.code, f.retryable) for f in failures} == {("internal_error", True)}
    assert "KeyError: 'this token cannot be spelt'" in failures[0].message
    assert outputs({k: results[k] for k in survivors}) == survivors  # type: ignore[arg-type] # no failures among them
    assert survivors


def test_logits_that_are_not_finite_fail_their_row_and_do_not_outlive_it(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup", max_rows=2))
    requests = make_requests(4, GREEDY)
    expected = generations(engine, requests)
    used = {token for g in expected.values() for token in g.token_ids} | {5, 6}
    used |= {token for request in requests for token in request.token_ids}
    poison = next(token for token in range(4, 320) if token not in used)
    engine._target._model.get_input_embeddings().weight[poison] = torch.nan

    results = run(engine, [Request("nan", (5, poison, 6), GREEDY), *requests])

    failure = results.pop("nan")
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == ("not_finite", False)
    assert outputs(results) == outputs(expected)  # type: ignore[arg-type] # no failures among them


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
    ids=["device", "cpu", "python"],
)
def test_a_pass_without_memory_fails_its_rows_and_the_engine_goes_on(
    error: Exception, target_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    engine = Engine(make_pair(target_folder("llama")))
    requests = make_requests(3, GREEDY)
    with monkeypatch.context() as patch:

        def no_memory(*_: object) -> None:
            raise error

        patch.setattr(engine._target, "forward", no_memory)
        failed = run(engine, requests)

    assert {(f.code, f.retryable) for f in failed.values() if isinstance(f, Failure)} == {
        ("out_of_memory", True)
    }
    assert len(generations(engine, requests)) == 3


def test_rows_that_end_while_others_have_not_begun_leave_room_for_them(
    target_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker.engine.engine.PREFILL_TOKENS", 20)
    engine = Engine(make_pair(target_folder("llama")))
    requests = make_requests(8, Sampling(max_tokens=1))

    assert len(generations(engine, requests)) == 8


class Faulty:
    """A drafter with one row that it cannot bear."""

    def __init__(self, answer: Callable[[], Proposal]) -> None:
        self._answer = answer
        self.forgotten: list[object] = []

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        return [
            self._answer() if row.request.id == 1 else [5] * limit
            for row, limit in zip(rows, limits, strict=True)
        ]

    def forget(self, row: Row) -> None:
        self.forgotten.append(row.request.id)


def _raise() -> Proposal:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_raise, "the drafter failed: RuntimeError: no idea"),
        (lambda: Refusal("its context ends"), "its context ends"),
        (lambda: [5, 320], "the drafter proposed 320, which is no token of the target"),
        (lambda: [-1], "the drafter proposed -1, which is no token of the target"),
    ],
    ids=["raises", "refuses", "beyond the vocabulary", "negative"],
)
def test_a_row_whose_drafter_fails_goes_on_without_and_says_why(
    answer: Callable[[], Proposal], reason: str, target_folder: Folders
):
    requests = make_requests(4, SEEDED)
    expected = outputs(generations(Engine(make_pair(target_folder("llama"))), requests))
    drafter = Faulty(answer)

    results = generations(Engine(make_pair(target_folder("llama")), drafter), requests)

    assert outputs(results) == expected
    assert {k: g.spec_disabled_reason for k, g in results.items()} == {0: None, 1: reason, 2: None, 3: None}
    assert (results[1].num_draft_tokens, results[0].num_draft_tokens > 0) == (0, True)
    assert set(drafter.forgotten) == {0, 1, 2, 3}


def test_a_draft_model_with_a_shorter_context_serves_a_row_until_there(
    target_folder: Folders, tmp_path: Path
):
    draft = save_tiny_model(tmp_path / "draft", max_position_embeddings=40)
    requests = make_requests(6, GREEDY)
    plain = generations(Engine(make_pair(target_folder("llama"))), requests)

    results = generations(Engine(make_pair(target_folder("llama"), "draft_model", draft)), requests)

    assert outputs(results) == outputs(plain)
    for g in results.values():
        too_long = g.prompt_tokens + g.completion_tokens > 42
        reason = "the draft model's context ends at 40 tokens" if too_long else None
        assert g.spec_disabled_reason == reason
    assert sum(g.num_accepted_draft_tokens for g in results.values()) > 20
