"""Every option with speculation: the tokens of plain decoding, whatever drafts."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.engine.running import (
    GREEDY,
    SEEDED,
    Oracle,
    generations,
    make_pair,
    make_requests,
    outputs,
    run,
)
from tests.worker.engine.tiny import END, EOS, Kind
from worker.engine import Engine, Failure, Request, Sampling

Folders = Callable[[Kind], Path]

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["the", "other"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "tags": {"type": "array", "items": {"enum": ["on", "in"]}, "maxItems": 2},
    },
    "required": ["kind", "count", "tags"],
    "additionalProperties": False,
}
OPTIONS = {
    "min_p": Sampling(min_p=0.2),
    "repetition": Sampling(repetition_penalty=1.7),
    "presence": Sampling(presence_penalty=1.9),
    "frequency": Sampling(frequency_penalty=1.1),
    "negative": Sampling(presence_penalty=-1.5, frequency_penalty=-1.0, repetition_penalty=0.8),
    "bias": Sampling(logit_bias=((5, 8.0), (40, 9.5), (EOS, -100.0), (END, 6.0), (77, 7.0))),
    "min_tokens": Sampling(min_tokens=12, logit_bias=((EOS, 9.0), (END, 9.0))),
    "stop_ids": Sampling(stop_token_ids=tuple(range(40, 60))),
    "regex": Sampling(regex=r"(the |on |[a-f]{2,5}, ){3,6}end"),
    "schema": Sampling(json_schema=json.dumps(SCHEMA)),
    "logprobs": Sampling(logprobs=3),
    "all": Sampling(
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        logit_bias=((50, 4.0), (60, -4.0)),
        min_tokens=5,
        stop_token_ids=(70, 71),
        regex=r"[a-z ]{1,60}",
        logprobs=2,
    ),
}
NAMES = list(OPTIONS)


def option(name: str, base: Sampling) -> Sampling:
    """The option, with the temperature, filters, seed and length of `base`."""
    return replace(
        OPTIONS[name],
        temperature=base.temperature,
        top_p=base.top_p,
        top_k=base.top_k,
        seed=base.seed,
        max_tokens=base.max_tokens,
    )


def mixed(count: int, base: Sampling) -> list[Request]:
    """Neighbours with different options, and some with none."""
    requests = make_requests(count, base)
    return [
        replace(request, sampling=option(NAMES[index % len(NAMES)], base) if index % 5 else base)
        for index, request in enumerate(requests)
    ]


@pytest.mark.parametrize("base", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("name", NAMES)
def test_an_option_alone_says_the_same_with_every_drafter(
    name: str, base: Sampling, target_folder: Folders, draft_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker.engine.drafters.prompt_lookup.MIN_NGRAM", 1)
    target = target_folder("llama")
    requests = make_requests(6, option(name, base))
    plain = generations(Engine(make_pair(target)), requests)
    tokens = {key: g.token_ids for key, g in plain.items()}
    assert outputs(plain) != outputs(generations(Engine(make_pair(target)), make_requests(6, base))) or (
        name == "logprobs" or (name == "min_p" and base is GREEDY)
    )

    drafted = {
        "lookup": Engine(make_pair(target, "prompt_lookup")),
        "draft": Engine(make_pair(target, "draft_model", draft_folder("llama"))),
        "wrong": Engine(make_pair(target), Oracle(tokens, [0])),
        "right": Engine(make_pair(target), Oracle(tokens, [4])),
        "both": Engine(make_pair(target), Oracle(tokens, [3, 0, 4, 1, 2])),
    }
    for drafter, engine in drafted.items():
        results = generations(engine, requests)
        assert outputs(results) == outputs(plain), drafter
        assert {g.spec_disabled_reason for g in results.values()} == {None}
        if drafter in ("right", "draft"):
            assert sum(g.num_accepted_draft_tokens for g in results.values()) > 0


@pytest.mark.parametrize("base", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_rows_with_different_options_do_not_disturb_each_other(base: Sampling, target_folder: Folders):
    requests = mixed(24, base)
    alone = Engine(make_pair(target_folder("qwen3")))
    expected = {request.id: outputs(generations(alone, [request]))[request.id] for request in requests}

    together = Engine(make_pair(target_folder("qwen3"), "prompt_lookup"))

    assert outputs(generations(together, requests)) == expected


def test_neither_eos_nor_stop_ids_come_before_min_tokens(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), "prompt_lookup"))
    eager = Sampling(logit_bias=((EOS, 50.0), (9, 50.0)), stop_token_ids=(9,), max_tokens=40, min_tokens=7)

    for g in generations(engine, make_requests(6, eager)).values():
        assert len(g.token_ids) == 8
        assert g.token_ids[-1] in (EOS, 9)
        assert g.finish_reason == "stop"


def test_a_stop_string_that_is_complete_before_min_tokens_is_text(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    [request] = make_requests(1, Sampling(logit_bias=((40, 80.0),), max_tokens=9, stop=("DD",), min_tokens=4))
    letter = engine.tokenizer.decode([40])
    request = replace(request, sampling=replace(request.sampling, stop=(letter * 2,)))

    g = generations(engine, [request])[0]

    assert g.text == letter * 4  # the stop string lies in the tokens after those four
    assert len(g.token_ids) == 6


def test_a_stop_id_ends_the_text_and_is_no_part_of_it(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    [request] = make_requests(1, GREEDY)
    free = generations(engine, [request])[0]
    stop = free.token_ids[6]
    first = free.token_ids.index(stop)

    stopped = generations(engine, [replace(request, sampling=replace(GREEDY, stop_token_ids=(stop,)))])[0]

    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.finish_reason == "stop"
    assert free.text.startswith(stopped.text)
    assert len(stopped.text) < len(free.text)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("drafter", ["prompt_lookup", "draft_model", "junk"])
def test_what_a_schema_allows_always_parses(
    drafter: str, temperature: float, target_folder: Folders, draft_folder: Folders
):
    sampling = Sampling(temperature, max_tokens=190, json_schema=json.dumps(SCHEMA), seed=5)
    requests = make_requests(16, sampling)
    if drafter == "junk":
        engine = Engine(make_pair(target_folder("llama")), Oracle({r.id: () for r in requests}, [4]))
    else:
        engine = Engine(make_pair(target_folder("llama"), drafter, draft_folder("llama")))  # type: ignore[arg-type] # a name

    results = generations(engine, requests)

    complete = [g for g in results.values() if g.finish_reason == "stop"]
    assert len(complete) > 10  # the others were cut by max_tokens
    for g in complete:
        value = json.loads(g.text)
        assert set(value) == {"kind", "count", "tags"}
        assert value["kind"] in ("the", "other")
        assert 0 <= value["count"] <= 9999
        assert set(value["tags"]) <= {"on", "in"}
    assert len({g.text for g in complete}) > 3


def test_what_a_regex_allows_always_matches(target_folder: Folders):
    pattern = r"[a-e]{3,9}(-[0-9]{2}){1,3}"
    engine = Engine(make_pair(target_folder("qwen3"), "prompt_lookup"))
    requests = make_requests(12, Sampling(1.0, max_tokens=60, regex=pattern, seed=3))

    for g in generations(engine, requests).values():
        assert re.fullmatch(pattern, g.text)


def test_a_grammar_that_ends_before_min_tokens_ends_the_text(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    [g] = generations(engine, make_requests(1, Sampling(regex="ab?", min_tokens=30))).values()

    assert re.fullmatch("ab?", g.text)
    assert g.finish_reason == "stop"


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(regex="(a"), "the regex cannot be compiled: .*unclosed group"),
        (
            Sampling(json_schema='{"type": "strin"}'),
            "the JSON schema cannot be compiled: Invalid type: strin",
        ),
        (
            Sampling(json_schema='{"not": {}}'),
            'the JSON schema cannot be compiled: Unimplemented keys: ."not"',
        ),
        (Sampling(json_schema="{"), "the JSON schema cannot be"),
        (Sampling(logit_bias=((320, 1.0),)), "logit_bias names token 320, and .* has the tokens 0 to 319"),
        (Sampling(stop_token_ids=(-1,)), "stop_token_ids names token -1"),
    ],
)
def test_what_can_never_be_served_fails_by_name_and_for_good(
    sampling: Sampling, message: str, target_folder: Folders
):
    engine = Engine(make_pair(target_folder("llama")))
    good, bad = make_requests(2, GREEDY)
    results = run(engine, [replace(bad, sampling=sampling), good])

    failure = results[bad.id]
    assert isinstance(failure, Failure)
    assert re.search(message, failure.message)
    assert not failure.retryable
    assert not isinstance(results[good.id], Failure)
