"""Logprobs of emitted tokens: the model's own, however the tokens were chosen and by whatever drafts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worker.engine.running import GREEDY, SEEDED, Oracle, generations, make_pair, make_requests
from tests.worker.engine.tiny import Kind, tiny_model
from worker.engine import Engine, Generation, Sampling

Folders = Callable[[Kind], Path]

WANTED = {
    "greedy": replace(GREEDY, logprobs=4),
    "seeded": replace(SEEDED, logprobs=4),
    "constrained": replace(
        SEEDED, logprobs=4, repetition_penalty=1.5, logit_bias=((50, 6.0),), regex="[a-zA-Z0-9 ]{30,80}"
    ),
}


def assert_equals_a_plain_forward(g: Generation, prompt: tuple[int, ...], alternatives: int) -> None:
    """Of the model as transformers runs it, over the finished text."""
    with torch.inference_mode():
        logits = tiny_model("llama")(torch.tensor([[*prompt, *g.token_ids]])).logits[0]
    expected = logits[len(prompt) - 1 : -1].log_softmax(-1)
    assert g.logprobs is not None
    assert [emitted.token_id for emitted in g.logprobs] == list(g.token_ids)
    for emitted, row in zip(g.logprobs, expected, strict=True):
        top = row.topk(alternatives)
        assert emitted.logprob == pytest.approx(row[emitted.token_id].item(), abs=1e-9)
        assert [other.token_id for other in emitted.alternatives] == top.indices.tolist()
        assert [other.logprob for other in emitted.alternatives] == pytest.approx(
            top.values.tolist(), abs=1e-9
        )


@pytest.mark.parametrize("sampling", WANTED.values(), ids=WANTED)
def test_they_equal_the_log_softmax_of_a_plain_forward(sampling: Sampling, target_folder: Folders):
    requests = make_requests(5, sampling)
    folder = target_folder("llama")
    plain = generations(Engine(make_pair(folder)), requests)
    drafted = Oracle({key: g.token_ids for key, g in plain.items()}, [3, 0, 4, 1])

    for results in (plain, generations(Engine(make_pair(folder), drafted), requests)):
        for request in requests:
            assert_equals_a_plain_forward(results[request.id], request.token_ids, 4)


def test_only_rows_that_ask_have_them_and_each_as_many_as_it_asked_for(target_folder: Folders):
    requests = [
        replace(request, sampling=replace(GREEDY, logprobs=wanted))
        for request, wanted in zip(make_requests(4, GREEDY), [None, 0, 2, 20], strict=True)
    ]
    results = generations(Engine(make_pair(target_folder("llama"), "prompt_lookup")), requests)

    assert results[0].logprobs is None
    for key, wanted in ((1, 0), (2, 2), (3, 20)):
        assert {len(emitted.alternatives) for emitted in results[key].logprobs or ()} == {wanted}
        assert_equals_a_plain_forward(results[key], requests[key].token_ids, wanted)


def test_the_spellings_of_a_text_s_tokens_are_its_bytes(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup"))
    requests = make_requests(5, replace(GREEDY, logprobs=1, min_tokens=40))

    for g in generations(engine, requests).values():
        assert g.logprobs is not None
        spelt = b"".join(
            emitted.spelling
            for emitted in g.logprobs
            if emitted.token_id not in engine.tokenizer.all_special_ids
        )
        assert spelt.decode(errors="replace").startswith(g.text[:-1])


def test_what_lies_beyond_a_stop_has_none(target_folder: Folders):
    [request] = make_requests(1, replace(GREEDY, logprobs=0))
    folder = target_folder("llama")
    free = generations(Engine(make_pair(folder)), [request])[0]
    stop = replace(request.sampling, stop_token_ids=(free.token_ids[6],))
    oracle = Oracle({0: free.token_ids}, [4])

    stopped = generations(Engine(make_pair(folder), oracle), [replace(request, sampling=stop)])[0]

    assert len(stopped.logprobs or ()) == len(stopped.token_ids) < len(free.token_ids)
