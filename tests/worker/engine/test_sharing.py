"""A beginning that prompts have in common is computed once, and nobody's text changes by it."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.worker.engine.running import GREEDY, SEEDED, generations, make_pair, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Request, Sampling
from worker.engine.cache import Chunk
from worker.engine.types import Method

Folders = Callable[[Kind], Path]
KINDS: list[Kind] = ["llama", "qwen3", "gemma3"]


def prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = random.Random(seed)
    return tuple(generator.randrange(4, 279) for _ in range(length))


def family(count: int, sampling: Sampling, shared: int = 70) -> list[Request]:
    """Prompts with the same beginning and ends of their own; every third is of another family."""
    return [Request(i, prompt(99 + (i % 3 == 2), shared) + prompt(i, 1 + i), sampling) for i in range(count)]


def prefilled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each pass of the target's from here on."""
    forward, sizes = engine._target.forward, list[int]()

    def counted(chunks: Sequence[Chunk]) -> Tensor:
        sizes.append(sum(len(chunk.token_ids) for chunk in chunks))
        return forward(chunks)

    monkeypatch.setattr(engine._target, "forward", counted)
    return sizes


@pytest.mark.parametrize("method", ["none", "prompt_lookup", "draft_model"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_says_what_it_says_alone(
    kind: Kind, method: Method, target_folder: Folders, draft_folder: Folders
):
    requests = family(11, SEEDED)
    alone = Engine(make_pair(target_folder(kind), max_rows=1))
    expected: dict[object, object] = {}
    for request in requests:
        expected |= outputs(generations(alone, [request]))
        alone.forget_prompts()

    engine = Engine(make_pair(target_folder(kind), method, draft_folder(kind), max_rows=4))
    results = generations(engine, requests)

    assert outputs(results) == expected
    # The other family may have left by the time that the next of it comes.
    assert [results[i].cached_tokens for i in range(11) if i % 3 < 2] == [0, *[70] * 7]
    assert {results[i].cached_tokens for i in (2, 5, 8)} <= {0, 70}


def test_those_that_come_together_wait_for_the_first(target_folder: Folders, monkeypatch: pytest.MonkeyPatch):
    engine = Engine(make_pair(target_folder("llama")))
    sizes = prefilled(engine, monkeypatch)
    requests = [Request(i, prompt(5, 70) + prompt(i, 10), Sampling(max_tokens=1)) for i in range(8)]

    results = generations(engine, requests)

    assert [results[i].cached_tokens for i in range(8)] == [0, *[70] * 7]
    assert sizes == [80, 7 * 10]


def test_a_beginning_too_short_is_nobody_s_reason_to_wait(
    target_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    engine = Engine(make_pair(target_folder("llama")))
    sizes = prefilled(engine, monkeypatch)
    requests = [Request(i, prompt(5, 15) + (10 + i,) * 10, Sampling(max_tokens=1)) for i in range(8)]

    results = generations(engine, requests)

    assert {g.cached_tokens for g in results.values()} == {0}
    assert sizes == [8 * 25]


def test_samples_of_a_prompt_compute_it_once(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup"))
    samples = [Request(i, prompt(1, 50), SEEDED, sample_index=i) for i in range(12)]

    results = generations(engine, samples)

    assert [results[i].cached_tokens for i in range(12)] == [0, *[49] * 11]
    assert len({g.token_ids for g in results.values()}) == 12


def test_a_prompt_that_goes_on_from_a_finished_output_takes_over_both(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup", max_rows=2))
    first = generations(engine, [Request(0, prompt(1, 30), GREEDY)])[0]
    conversation = prompt(1, 30) + first.token_ids + prompt(2, 20)

    second = generations(engine, [Request(0, conversation, GREEDY)])[0]

    # What ended the first was emitted, and never computed.
    assert second.cached_tokens == 30 + len(first.token_ids) - 1
    fresh = Engine(make_pair(target_folder("llama")))
    assert second.token_ids == generations(fresh, [Request(0, conversation, GREEDY)])[0].token_ids


def test_prompts_that_are_forgotten_are_computed_again(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    request = Request(0, prompt(1, 50), SEEDED)
    cached = [generations(engine, [request])[0].cached_tokens for _ in range(2)]
    engine.forget_prompts()
    cached.append(generations(engine, [request])[0].cached_tokens)

    assert cached == [0, 49, 0]


def test_what_was_not_finite_is_nobody_s_beginning(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), max_rows=2))
    good, poison = Request("good", prompt(1, 40), GREEDY), 300
    expected = outputs(generations(engine, [good]))
    engine.forget_prompts()
    engine._target._model.get_input_embeddings().weight[poison] = torch.nan
    bad = Request("bad", (*prompt(1, 39), poison), GREEDY)

    for request in (bad, bad):
        engine.submit(request)
    while engine.busy:
        engine.step()

    results = generations(engine, [good])
    assert outputs(results) == expected
    assert results["good"].cached_tokens == 0
