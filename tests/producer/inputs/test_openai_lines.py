"""OpenAI batch lines are taken as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.producer.inputs.reading import read

CHAT = {
    "model": "gpt-4o-mini",
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ],
}


def line(body: Any, **fields: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body} | fields


def read_lines(tmp_path: Path, *lines: Any, **options: Any) -> Any:
    path = tmp_path / "batch.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in lines))
    return read(path, **options)


def test_a_chat_line(tmp_path: Path) -> None:
    items, bad = read_lines(
        tmp_path, line({**CHAT, "max_completion_tokens": 5, "stop": ["x"], "n": 2, "user": "u1"})
    )
    assert not bad
    (item,) = items
    assert item.custom_id == "a"
    assert item.messages == [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]
    assert item.sampling == {"max_tokens": 5, "stop": ["x"]}
    assert item.n == 2
    assert item.model == "gpt-4o-mini"
    assert item.metadata == {"model": "gpt-4o-mini", "user": "u1"}


def test_a_completions_line_is_raw_text(tmp_path: Path) -> None:
    items, bad = read_lines(tmp_path, line({"model": "m", "prompt": "Once"}, url="/v1/completions"))
    assert not bad
    assert (items[0].text, items[0].messages) == ("Once", None)


def test_every_option_of_a_body_is_taken(tmp_path: Path) -> None:
    schema = {"name": "point", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    options = {
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"198": -100}, "logprobs": True,
        "top_logprobs": 3, "response_format": {"type": "json_schema", "json_schema": schema},
    }  # fmt: skip
    items, bad = read_lines(tmp_path, line(CHAT | options))
    assert not bad
    assert items[0].sampling == {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"198": -100},
        "logprobs": 3,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


def test_a_completions_line_s_logprobs_are_a_number(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "Once", "logprobs": 2}
    items, bad = read_lines(tmp_path, line(body, url="/v1/completions"))
    assert not bad
    assert items[0].sampling == {"logprobs": 2}


def test_options_that_ask_for_nothing_are_let_through(tmp_path: Path) -> None:
    neutral = {
        "presence_penalty": 0, "frequency_penalty": 0.0, "stream": False, "logprobs": False, "logit_bias": {},
        "response_format": {"type": "text"}, "tools": None, "store": False, "top_logprobs": None,
        "service_tier": "auto",
    }  # fmt: skip
    assert read_lines(tmp_path, line(CHAT | neutral))[1] == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (line(CHAT | {"presence_penalty": 3}), "option presence_penalty: input should be less than or equal"),
        (line(CHAT | {"logit_bias": {"the": 1}}), "option logit_bias: string should match pattern"),
        (line(CHAT | {"top_logprobs": 2}), "option top_logprobs: needs logprobs to be true"),
        (line(CHAT | {"stream": True}), "body option stream=True is not supported"),
        (line(CHAT | {"tools": [{"type": "function"}]}), "body option tools="),
        (line(CHAT | {"response_format": {"type": "xml"}}), "option response_format: response_format type"),
        (
            line(CHAT | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}),
            "option response_format: the JSON schema cannot be compiled: Unimplemented keys",
        ),
        (line(CHAT | {"temprature": 1}), 'unknown option "temprature"'),
        (line(CHAT | {"temperature": 9}), "option temperature: input should be less than or equal to 2"),
        (line(CHAT, url="/v1/embeddings"), "url must be /v1/chat/completions or /v1/completions"),
        (line(CHAT, method="GET"), "method must be POST, got 'GET'"),
        (line("text"), "body must be an object, got a string"),
        (line({"model": "m"}), "messages must be a list with at least one message"),
        (line({"prompt": ["a", "b"]}, url="/v1/completions"), "body.prompt must be one string"),
        (line(CHAT, custom_id=None), "custom_id must be a string that is not empty"),
        (line(CHAT, extra=1), 'unknown field "extra" in an OpenAI batch line'),
    ],
)  # fmt: skip
def test_each_mistake_is_named(tmp_path: Path, value: Any, message: str) -> None:
    items, bad = read_lines(tmp_path, value)
    assert items == []
    assert f"batch.jsonl:1: {message}" in bad[0]


def test_a_template_cannot_apply(tmp_path: Path) -> None:
    from producer.inputs.template import PromptTemplate

    (tmp_path / "t.j2").write_text("{{ prompt }}")
    assert (
        "taken as it is" in read_lines(tmp_path, line(CHAT), template=PromptTemplate(tmp_path / "t.j2"))[1][0]
    )
