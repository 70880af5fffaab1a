"""Rows of JSONL, JSON and CSV: what they may say, and how each mistake is named."""

import json
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.inputs import RowError
from producer.inputs.json_rows import read_jsonl
from tests.producer.inputs.reading import prompts, read


def rows(path: Path, *values: Any) -> Path:
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values))
    return path


def bad_message(tmp_path: Path, value: Any, **options: Any) -> str:
    path = rows(tmp_path / "r.jsonl", value)
    items, bad = read(path, **options)
    assert items == []
    assert len(bad) == 1
    assert bad[0].startswith(f"{path}:1: ")
    return bad[0].removeprefix(f"{path}:1: ")


def test_a_row_has_a_prompt_or_messages_and_options(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "r.jsonl",
        {"prompt": "one"},
        "",
        {
            "prompt": "two",
            "custom_id": "second",
            "temperature": 0.5,
            "max_tokens": 9,
            "stop": "END",
            "n": 2,
            "seed": 1,
        },
        {"messages": [{"role": "user", "content": "three"}], "metadata": {"k": [1]}},
        {
            "prompt": "four",
            "chat_template_kwargs": {"thinking": False},
            "top_p": None,
            "max_completion_tokens": 4,
        },
    )
    items, bad = read(path)
    assert not bad
    assert prompts(items) == ["one", "two", "three", "four"]
    assert [item.custom_id for item in items] == ["r.jsonl:1", "second", "r.jsonl:4", "r.jsonl:5"]
    assert [item.line for item in items] == [1, 3, 4, 5]
    assert items[1].sampling == {"temperature": 0.5, "max_tokens": 9, "stop": ["END"], "seed": 1}
    assert items[1].n == 2
    assert items[2].metadata == {"k": [1]}
    assert items[3].chat_template_kwargs == {"thinking": False}
    assert items[3].sampling == {"max_tokens": 4}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": "a"', "not JSON: Expecting ',' delimiter at column 15"),
        ("[1]", "expected an object with prompt or messages, got a list"),
        ({}, "has neither prompt nor messages"),
        ({"prompt": 7}, "prompt must be a string, got a number"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": "a", "messages": []}, "has both prompt and messages"),
        ({"messages": "a"}, "messages must be a list with at least one message, got a string"),
        ({"messages": []}, "messages must be a list with at least one message"),
        ({"messages": [{"role": "owl", "content": "a"}]}, "message 1: role must be one of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "got image_url"),
        ({"messages": [{"role": "user"}]}, "message 1: content must be a string, got null"),
        ({"prompt": "a", "custom_id": 7}, "custom_id must be a string, got a number"),
        ({"prompt": "a", "custom_id": ""}, "custom_id is empty"),
        ({"prompt": "a", "metadata": "x"}, "metadata must be an object, got a string"),
        ({"prompt": "a", "temprature": 1}, 'unknown option "temprature"; known: frequency_penalty, '),
        ({"prompt": "a", "temperature": 3}, "option temperature: input should be less than or equal to 2"),
        ({"prompt": "a", "temperature": "1"}, "option temperature: input should be a valid number, got '1'"),
        ({"prompt": "a", "max_tokens": 0}, "option max_tokens: input should be greater than or equal to 1"),
        ({"prompt": "a", "max_tokens": 1, "max_completion_tokens": 1}, "are one option"),
        ({"prompt": "a", "min_p": 1.1}, "option min_p: input should be less than or equal to 1, got 1.1"),
        ({"prompt": "a", "logprobs": 21}, "option logprobs: input should be less than or equal to 20"),
        ({"prompt": "a", "regex": "(a"}, "the regex cannot be compiled"),
        ({"prompt": "a", "regex": "a", "response_format": "json"}, "option regex: response_format describes"),
        ('{"prompt": NaN}', "NaN is not JSON"),
        ('{"prompt": "\\u0000"}', "NUL character"),
        ('{"prompt": "a", "metadata": {"\\ud800": 1}}', "half a surrogate pair (\\ud800)"),
        ("[" * 200_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(tmp_path: Path, row: Any, message: str) -> None:
    assert message in bad_message(tmp_path, row)


def test_options_that_ask_for_nothing_are_let_through(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "r.jsonl",
        {"prompt": "a", "min_p": 0, "logprobs": False, "response_format": {"type": "text"}},
    )
    assert len(read(path)[0]) == 1


def test_a_bad_line_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "one"}\r\n{"prompt": "caf\xe9"}\n{"prompt"\n\n{"prompt": "last"}'
    )
    items, bad = read(path)
    assert prompts(items) == ["one", "last"]
    assert items[1].line == 5
    assert bad[0] == f"{path}:2: not UTF-8: byte 0xe9 at byte offset 37; save it as UTF-8"
    assert bad[1].startswith(f"{path}:3: not JSON")


def test_a_duplicate_custom_id_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    named = [("two", "x"), ("3", "a.txt"), ("4", "x")]
    rows(tmp_path / "r.jsonl", *({"prompt": prompt, "custom_id": name} for prompt, name in named))
    items, bad = read(tmp_path)
    assert prompts(items) == ["one", "two"]
    assert f'r.jsonl:2: custom_id "a.txt" was already used at {tmp_path / "a.txt"};' in bad[0]
    assert f'r.jsonl:3: custom_id "x" was already used at {tmp_path / "r.jsonl"}:1;' in bad[1]


@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.csv"])
def test_an_empty_file_of_rows_is_a_bad_item(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n")
    assert read(tmp_path)[1] == [f"{tmp_path / name}: empty; expected at least one row"]


def test_standard_input_is_jsonl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b'{"prompt": "a"}\nno\n')))
    items, bad = read(Path("-"))
    assert [item.custom_id for item in items] == ["stdin:1"]
    assert bad[0].startswith("<stdin>:2: not JSON")


def test_messages_keep_their_own_system_message(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "a"}]
    path = rows(tmp_path / "r.jsonl", {"messages": own}, {"messages": own[1:]})
    items, _ = read(path, system="Given.")
    assert [item.messages[0]["content"] for item in items if item.messages] == ["Own.", "Given."]


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1)


@settings(max_examples=200)
@given(st.lists(st.dictionaries(text, st.one_of(text, st.integers(), st.lists(text))), min_size=1))
def test_what_json_writes_is_what_is_read(values: list[dict[str, Any]]) -> None:
    for ascii_only in (True, False):
        data = "".join(json.dumps(value, ensure_ascii=ascii_only) + "\n" for value in values).encode()
        assert [row for _, row in read_jsonl(BytesIO(data))] == values


@given(st.binary())
def test_whatever_the_bytes_reading_them_ends_in_rows_or_errors_with_places(data: bytes) -> None:
    for line, row in read_jsonl(BytesIO(data)):
        assert line >= 1
        assert isinstance(row, dict | RowError)
