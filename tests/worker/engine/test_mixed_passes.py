"""Prompts are computed beside running rows, in parts, so that these go on saying something."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.worker.engine.running import SEEDED, generations, make_pair, make_requests, outputs, run
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Request, Sampling
from worker.engine.types import Method

Folders = Callable[[Kind], Path]


def test_running_rows_get_a_token_in_each_step_while_a_long_prompt_comes(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), prefill_tokens=20))
    for request in make_requests(3, Sampling(max_tokens=60, temperature=1.0)):
        engine.submit(request)
    engine.step()
    running = list(engine._rows)
    assert all(row.is_ready for row in running)

    engine.submit(Request("long", tuple(range(10, 260)), Sampling(max_tokens=3)))
    said = [[row.num_output for row in running]]
    while (engine.step() or True) and not engine._rows[-1].is_ready:
        said.append([row.num_output for row in running])

    assert engine._rows[-1].request.id == "long"
    assert len(said) == -(-250 // 20)
    for before, after in pairwise(said):
        assert after == [count + 1 for count in before]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("method", ["none", "prompt_lookup", "draft_model"])
def test_prompts_in_parts_change_nothing(
    kind: Kind, method: Method, target_folder: Folders, draft_folder: Folders
):
    requests = make_requests(14, SEEDED)
    expected = outputs(generations(Engine(make_pair(target_folder(kind))), requests))
    engine = Engine(make_pair(target_folder(kind), method, draft_folder(kind), prefill_tokens=7, max_rows=4))

    assert outputs(run(engine, requests)) == expected  # type: ignore[arg-type] # no failures among them


def test_an_idle_engine_computes_prompts_at_full_speed(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), prefill_tokens=1))
    for request in make_requests(8, Sampling(max_tokens=5)):
        engine.submit(request)
    engine.step()
    assert all(row.is_ready for row in engine._rows)
