"""What options do to logits: transformers' and OpenAI's definitions, at each position of a block."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from tests.worker.engine.running import GREEDY, generations, make_pair, make_requests
from tests.worker.engine.test_sampling import assert_follows, dozen
from tests.worker.engine.tiny import END, EOS, Kind, tiny_model, tiny_tokenizer
from worker.engine import Engine, Request, Sampling
from worker.engine.constraints import Constraints, Span, constrain
from worker.engine.defaults import generation_defaults, unserved_defaults
from worker.engine.drafters import Proposal
from worker.engine.grammar import Grammars
from worker.engine.rows import Row
from worker.engine.sampling import Draw, choose

Folders = Callable[[Kind], Path]


def adjusted(logits: Tensor, sampling: Sampling, prompt: list[int], output: list[int]) -> Tensor:
    """By the definitions, one position at a time and slowly."""
    scores = logits.clone()
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    if sampling.repetition_penalty != 1:
        seen = torch.tensor([[*prompt, *output]])
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(seen, scores[None])[0]
    for token in set(output):
        scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    if len(output) < sampling.min_tokens:
        scores[[EOS, END]] = -torch.inf
    return scores


ALL = Sampling(
    repetition_penalty=1.3,
    presence_penalty=0.7,
    frequency_penalty=0.4,
    logit_bias=((3, 2.5), (7, -100.0), (9, 1.0)),
    min_tokens=5,
)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=1.3),
        Sampling(repetition_penalty=0.7),
        Sampling(presence_penalty=1.0),
        Sampling(frequency_penalty=-0.5),
        Sampling(logit_bias=((3, 2.0), (4, -2.0))),
        Sampling(min_tokens=5),
        ALL,
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [0, 2, 3])
def test_each_position_of_a_block_counts_the_proposals_before_it(sampling: Sampling, first: int):
    prompt, output, ahead = [5, 6, 6, 11], [6, 8, 8, 3], [8, 9, 3]
    constraints = Constraints(Request(0, tuple(prompt), sampling), {EOS, END}, None)
    for token in output:
        constraints.push(token)
    logits = torch.randn(6, 14, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    before = logits.clone()

    constrain(logits, [Span(constraints, 1, ahead, first)])

    for index, length in enumerate(range(first, len(ahead) + 1)):
        expected = adjusted(before[1 + index], sampling, prompt, output + ahead[:length])
        torch.testing.assert_close(logits[1 + index], expected)
    untouched = [0, *range(1 + 4 - first, 6)]
    assert torch.equal(logits[untouched], before[untouched])


def test_a_smaller_vocabulary_knows_fewer_of_the_tokens():
    sampling = Sampling(repetition_penalty=2.0, logit_bias=((12, 1.0), (3, 1.0)), min_tokens=3)
    constraints = Constraints(Request(0, (13, 4), sampling), {EOS, 13}, None)
    logits = torch.ones(1, 10)

    constrain(logits, [Span(constraints, 0, [], 0)])

    assert logits[0].tolist() == [1, -torch.inf, 1, 2, 0.5, 1, 1, 1, 1, 1]


def test_half_precision_is_penalised_in_single():
    constraints = Constraints(Request(0, (2,), Sampling(repetition_penalty=1.1)), set(), None)
    logits = torch.full((1, 4), 3.0, dtype=torch.bfloat16)

    assert constrain(logits, [Span(constraints, 0, [])])[0, 2].item() == pytest.approx(3 / 1.1)


@pytest.mark.parametrize("method", ["none", "prompt_lookup"])
@pytest.mark.parametrize(
    "options", [{"repetition_penalty": 1.4}, {"repetition_penalty": 1.15, "min_new_tokens": 9}]
)
def test_greedy_with_penalties_says_what_transformers_says(
    method: Any, options: dict[str, Any], target_folder: Folders
):
    requests = make_requests(6, GREEDY)
    model = tiny_model("llama")
    sampling = replace(
        GREEDY, repetition_penalty=options["repetition_penalty"], min_tokens=options.get("min_new_tokens", 0)
    )
    results = generations(
        Engine(make_pair(target_folder("llama"), method)),
        [replace(request, sampling=sampling) for request in requests],
    )
    for request in requests:
        ids = torch.tensor([request.token_ids])
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, **options
        )  # type: ignore[operator] # its mixin
        assert results[request.id].token_ids == tuple(said[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("candidates", [1, 4, 64])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, min_p=0.1),
        Sampling(temperature=1.6, min_p=0.3, top_p=0.9),
        Sampling(temperature=1.0, min_p=0.05, top_k=6, top_p=0.8),
    ],
    ids=str,
)
def test_the_law_with_min_p_is_that_of_transformers(sampling: Sampling, candidates: int):
    order = torch.randperm(30, generator=torch.Generator().manual_seed(8))
    logits = torch.linspace(-1.5, 1.5, 30, dtype=torch.float64)[order]
    draws = [Draw(sampling, sample, position) for sample in range(40) for position in range(100)]

    tokens = choose(logits.expand(len(draws), -1).clone(), draws, candidates)

    assert_follows(tokens, law(logits, sampling))


def law(logits: Tensor, sampling: Sampling) -> Tensor:
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits[None])
    if sampling.top_k:
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[:, -1:], -torch.inf)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return MinPLogitsWarper(sampling.min_p)(None, scores)[0].softmax(-1)  # type: ignore[arg-type] # unused


@pytest.mark.parametrize(
    "options",
    [
        {"min_p": 0.15},
        {"repetition_penalty": 1.6, "presence_penalty": 0.8, "frequency_penalty": 0.6},
        {"logit_bias": ((2, 1.5), (4, -3.0), (9, 0.8)), "repetition_penalty": 1.2, "min_p": 0.05},
    ],
    ids=str,
)
def test_the_engine_s_samples_follow_the_law_of_their_options(options: dict[str, Any], tmp_path: Path):
    """Two tokens after a fixed prompt, over a dozen: the second is verified in a block with the first."""
    sampling = Sampling(2.0, max_tokens=3, seed=78, **options)
    prompt = [4, 7, 5]
    requests = [Request(i, tuple(prompt), sampling, i) for i in range(3000)]
    target = dozen(tmp_path / "target", seed=0)
    results = generations(Engine(make_pair(target, max_rows=256), Guesser()), requests)
    assert sum(g.num_accepted_draft_tokens for g in results.values()) > 30

    model = tiny_model("llama", vocab_size=12, seed=0)

    def after(output: list[int]) -> Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output])).logits[0, -1]
        return law(adjusted(logits, sampling, prompt, output), sampling)

    first = after([])
    joint = torch.cat([first[token] * after([token]) for token in range(12)])
    assert_follows(torch.tensor([g.token_ids[0] * 12 + g.token_ids[1] for g in results.values()]), joint)


class Guesser:
    """Proposes each token to as many rows."""

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        return [[row.request.sample_index % 12] * limit for row, limit in zip(rows, limits, strict=True)]

    def forget(self, row: Row) -> None:
        pass


def test_a_model_s_own_defaults_are_honoured():
    greedy = GenerationConfig(do_sample=False, repetition_penalty=1.1, min_new_tokens=3)
    sampled = GenerationConfig(do_sample=True, min_p=0.05, top_k=20, repetition_penalty=1.05)

    assert generation_defaults(greedy) == {"temperature": 0.0, "repetition_penalty": 1.1, "min_tokens": 3}
    assert generation_defaults(sampled) == {
        "temperature": 1.0,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
    }


def test_those_that_are_not_served_are_warned_of_by_name(caplog: pytest.LogCaptureFixture):
    assert unserved_defaults(GenerationConfig(bos_token_id=1)) == {}
    config = GenerationConfig(do_sample=True, no_repeat_ngram_size=3, typical_p=0.9)

    assert generation_defaults(config) == {"temperature": 1.0}

    assert unserved_defaults(config) == {"no_repeat_ngram_size": 3, "typical_p": 0.9}
    assert "generation_config sets no_repeat_ngram_size=3, typical_p=0.9" in caplog.text


def test_proposals_that_the_grammar_forbids_need_not_be_verified():
    tokenizer = tiny_tokenizer()
    sampling = Sampling(regex="the [ab]{2}!")
    request = Request(0, (4,), sampling)
    constraints = Constraints(request, {EOS}, Grammars(tokenizer, 320, {EOS, END}).start(sampling))
    good, bad = (tokenizer.encode(text, add_special_tokens=False) for text in ("the ab!", "the aXb!"))

    assert constraints.admissible(good) == good
    assert constraints.admissible(bad) == bad[: bad.index(*tokenizer.encode("X", add_special_tokens=False))]
    for token in good[:-1]:
        assert not constraints.push(token)
    assert constraints.push(good[-1])
