"""Memory that runs out in a step costs no prompt: fewer rows go on, the others begin again later."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.worker.engine.running import SEEDED, generations, make_pair, make_requests, outputs, run
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Failure, Request
from worker.engine.cache import Chunk, LayerShape
from worker.engine.capacity import RECOVERY_SECONDS, Capacity
from worker.engine.contiguous import ContiguousCache

Folders = Callable[[Kind], Path]

MESSAGES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
]


def limit_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, rows: int, error: Exception = MESSAGES[0]
) -> list[int]:
    """Passes of more than so many rows fail, with keys and values written; the sizes of all passes."""
    forward, sizes = engine._target.forward, list[int]()

    def limited(chunks: Sequence[Chunk]) -> Tensor:
        sizes.append(len(chunks))
        logits = forward(chunks)
        if len(chunks) > rows:
            raise error
        return logits

    monkeypatch.setattr(engine._target, "forward", limited)
    return sizes


@pytest.mark.parametrize("error", MESSAGES, ids=lambda error: type(error).__name__)
def test_every_prompt_gets_its_text_nevertheless(
    target_folder: Folders, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    requests = make_requests(9, SEEDED)
    pair = make_pair(target_folder("llama"), "prompt_lookup", max_rows=8)
    expected = outputs(generations(Engine(pair), requests))
    engine = Engine(pair)
    sizes = limit_memory(engine, monkeypatch, 3, error)

    assert outputs(generations(engine, requests)) == expected
    assert sum(size > 3 for size in sizes) == 2, "8 rows, then 4; what does not fit is not tried again"
    assert engine.max_rows == 2


def test_with_a_draft_model(target_folder: Folders, monkeypatch: pytest.MonkeyPatch):
    requests = make_requests(6, SEEDED)
    folder = target_folder("llama")
    pair = make_pair(folder, "draft_model", folder)
    expected = outputs(generations(Engine(pair), requests))
    engine = Engine(pair)
    limit_memory(engine, monkeypatch, 2)
    assert outputs(generations(engine, requests)) == expected


def test_those_that_came_first_go_on(target_folder: Folders, monkeypatch: pytest.MonkeyPatch):
    engine = Engine(make_pair(target_folder("llama")))
    for request in make_requests(8, SEEDED):
        engine.submit(request)
    limit_memory(engine, monkeypatch, 4)
    engine.step()
    assert [row.request.id for row in engine._rows] == [0, 1, 2, 3]
    assert (engine.rows_in_flight, engine.num_waiting) == (4, 4)


def test_a_prompt_that_does_not_fit_alone_fails_by_name_and_alone(
    target_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    good = make_requests(3, SEEDED, longest=20)
    big = Request("big", (7,) * 60, SEEDED)
    engine = Engine(make_pair(target_folder("llama")))
    expected = outputs(generations(engine, good))
    forward = engine._target.forward

    def limited(chunks: Sequence[Chunk]) -> Tensor:
        if any(len(chunk.token_ids) > 50 for chunk in chunks):
            raise MESSAGES[0]
        return forward(chunks)

    monkeypatch.setattr(engine._target, "forward", limited)
    results = run(engine, [good[0], big, *good[1:]])

    failure = results.pop("big")
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == ("out_of_memory", True)
    assert "even alone" in failure.message
    assert outputs(results) == expected


def test_other_errors_of_a_step_are_not_taken_for_it(target_folder: Folders, monkeypatch: pytest.MonkeyPatch):
    engine = Engine(make_pair(target_folder("llama")))
    limit_memory(engine, monkeypatch, 0, RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        generations(engine, make_requests(2, SEEDED))


def test_fewer_rows_are_tried_for_a_while_and_then_more_again():
    time = 0.0
    capacity = Capacity(32, clock=lambda: time)
    assert capacity.rows == 32
    assert capacity.ran_out(in_flight=20) == 10
    assert capacity.rows == 10
    time += RECOVERY_SECONDS
    assert capacity.rows == 20
    assert capacity.rows == 20
    time += RECOVERY_SECONDS
    assert capacity.rows == 32
    assert capacity.ran_out(in_flight=1) == 0
    assert capacity.rows == 1


def test_a_cache_gives_its_memory_back_and_keeps_what_is_in_use():
    cache = ContiguousCache([LayerShape(1, 2, 2)] * 2, 32, 512, torch.float32, "cpu")
    cache.reserve([Chunk(32 - 1, 0, [0] * 300, 0)])
    cache.keys[1][3] = 5.0
    cache.trim(5)
    assert [tuple(buffer.shape) for buffer in (*cache.keys, *cache.values)] == [(8, 1, 512, 2)] * 4
    assert cache.keys[1][3].min() == 5.0
    cache.reserve([Chunk(9 - 1, 0, [0] * 300, 0)])
    assert cache.keys[1].shape[0] == 12
    assert cache.keys[1][3].min() == 5.0


def test_a_cache_that_could_not_grow_grows_later(monkeypatch: pytest.MonkeyPatch):
    cache = ContiguousCache([LayerShape(1, 2, 2)] * 3, 32, 512, torch.float32, "cpu")
    cache.reserve([Chunk(4 - 1, 0, [0] * 10, 0)])
    new_zeros, left = torch.Tensor.new_zeros, 2

    def scarce(self: Tensor, *size: int) -> Tensor:
        nonlocal left
        left -= 1
        if left < 0:
            raise MESSAGES[0]
        return new_zeros(self, *size)

    monkeypatch.setattr(torch.Tensor, "new_zeros", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        cache.reserve([Chunk(8 - 1, 0, [0] * 300, 0)])
    monkeypatch.undo()
    cache.reserve([Chunk(8 - 1, 0, [0] * 300, 0)])
    assert {tuple(buffer.shape) for buffer in (*cache.keys, *cache.values)} == {(8, 1, 512, 2)}
