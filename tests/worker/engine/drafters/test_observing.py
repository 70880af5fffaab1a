"""What a drafter is shown of the target: each position of each row and the logits after it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.worker.engine.running import (
    GREEDY,
    SEEDED,
    Oracle,
    generations,
    make_pair,
    make_requests,
    outputs,
)
from tests.worker.engine.tiny import Kind, tiny_model
from worker.engine import Engine, EngineError
from worker.engine.cache import Chunk
from worker.engine.drafters import NoDrafter, Proposal
from worker.engine.planner import VerifyAll
from worker.engine.rows import Row

Folders = Callable[[Kind], Path]
TAPS = (0, 1)


class Watcher(Oracle):
    """Right now and then; keeps the features of each row's positions, and the logits after them."""

    taps = TAPS

    def __init__(self, outputs: dict[object, tuple[int, ...]]) -> None:
        super().__init__(outputs, [3, 0, 4, 1])
        self.features: dict[object, dict[int, Tensor]] = defaultdict(dict)
        self.logits: dict[object, dict[int, Tensor]] = defaultdict(dict)

    def observe(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor, logits: Tensor) -> None:
        token, wanted = 0, 0
        for row, chunk in zip(rows, chunks, strict=True):
            for position in range(chunk.start, chunk.end):
                self.features[row.request.id][position] = features[token].clone()
                token += 1
            for position in range(chunk.end - chunk.num_logits, chunk.end):
                self.logits[row.request.id][position] = logits[wanted].clone()
                wanted += 1
        assert (token, wanted) == (len(features), len(logits))

    def shareable(self, row: Row) -> int:
        return row.cached


class Blind(NoDrafter):
    taps = TAPS

    def observe(self, *_: object, **__: object) -> None:
        raise ValueError("it cannot see")

    def shareable(self, row: Row) -> int:
        return row.cached

    def propose(self, *_: object, **__: object) -> list[Proposal]:
        raise AssertionError("nobody asks it any more")


@pytest.mark.parametrize("prefill_tokens", [256, 7])
def test_it_sees_what_a_pass_over_the_finished_text_computes(
    target_folder: Folders, prefill_tokens: int
) -> None:
    requests = make_requests(6, SEEDED)
    plain = generations(Engine(make_pair(target_folder("llama"))), requests)
    watcher = Watcher({key: g.token_ids for key, g in plain.items()})
    engine = Engine(make_pair(target_folder("llama"), prefill_tokens=prefill_tokens), watcher)

    assert outputs(generations(engine, requests)) == outputs(plain)

    model = tiny_model("llama")
    for request in requests:
        text = (*request.token_ids, *plain[request.id].token_ids)[:-1]
        right = model(torch.tensor([text]), output_hidden_states=True)
        hidden = torch.cat([right.hidden_states[tap + 1][0] for tap in TAPS[:1]], dim=-1)
        seen = watcher.features[request.id]
        known = torch.stack([seen[position] for position in range(len(text))])
        torch.testing.assert_close(known[:, : hidden.shape[1]], hidden)
        assert known.shape[1] == len(TAPS) * hidden.shape[1]
        for position in range(len(request.token_ids) - 1, len(text)):
            torch.testing.assert_close(watcher.logits[request.id][position], right.logits[0, position])


def test_one_that_fails_to_follow_is_not_asked_again(target_folder: Folders) -> None:
    requests = make_requests(4, GREEDY)
    plain = generations(Engine(make_pair(target_folder("llama"))), requests)

    results = generations(Engine(make_pair(target_folder("llama")), Blind()), requests)

    assert outputs(results) == outputs(plain)
    assert {g.spec_disabled_reason for g in results.values()} == {
        "the drafter failed: ValueError: it cannot see"
    }


def test_an_engine_shows_only_the_layers_that_it_was_made_to_show(target_folder: Folders) -> None:
    engine = Engine(make_pair(target_folder("llama")))
    with pytest.raises(EngineError, match=r"layers \[0, 1\].*made to show \[\]"):
        engine.exchange(Blind(), VerifyAll(4))
