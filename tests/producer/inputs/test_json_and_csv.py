"""*.json holds a list of rows, *.csv one a line under a header."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.inputs import json_rows
from producer.inputs.json_rows import read_json
from tests.producer.inputs.reading import prompts, read


@pytest.fixture(params=[1, 3, 1 << 20])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the window's edge falls, the rows are the same."""
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('[{"a": 1},\n {"b": [2, 3]} ]\n', [(1, {"a": 1}), (2, {"b": [2, 3]})]),
        ('{"a": "x"}', [(1, {"a": "x"})]),
        ("[]", []),
        ("", []),
        ('[{"a": 1}, 12,\n{"b": 2}]', [(1, {"a": 1}), (1, "expected an object"), (2, {"b": 2})]),
        ('[{"a": 1},\n {"b": }]', [(1, {"a": 1}), (2, "not JSON: Expecting value at column 8; nothing")]),
        ('[{"a": 1}', [(1, {"a": 1}), (1, "not JSON: expected , or ] at column 10")]),
        ('[{"a": 1} {"b": 2}]', [(1, {"a": 1}), (1, "not JSON: expected , or ] at column 11")]),
        ('{"a": 1}\n{"b": 2}', [(1, {"a": 1}), (2, "more than one value; a file with one object")]),
        ("[\n\n{\"a\": \"caf\udce9\"}]", [(None, "not UTF-8: byte 0xe9 at byte offset 13")]),
    ],
)  # fmt: skip
def test_a_list_is_read_element_by_element(source: str, expected: list[tuple[int | None, Any]]) -> None:
    found = list(read_json(BytesIO(source.encode(errors="surrogateescape"))))
    assert len(found) == len(expected)
    for (line, row), (expected_line, expected_row) in zip(found, expected, strict=True):
        assert expected_line is None or line == expected_line
        assert str(row).startswith(expected_row) if isinstance(expected_row, str) else row == expected_row


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.dictionaries(names, numbers)), st.integers(1, 40))
def test_json_written_is_json_read(values: list[dict[str, float]], chunk: int) -> None:
    whole, json_rows.CHUNK_BYTES = json_rows.CHUNK_BYTES, chunk
    try:
        data = json.dumps(values, indent=1, ensure_ascii=False).encode()
        assert [row for _, row in read_json(BytesIO(data))] == values
    finally:
        json_rows.CHUNK_BYTES = whole


def test_csv_cells_are_fields_and_empty_ones_are_not_given(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(
        'custom_id,prompt,temperature,max_tokens,metadata\n'
        'a,"two\nlines, ""quoted""",0.5,8,"{""k"": 1}"\n'
        ",plain,,,\n"
    )  # fmt: skip
    items, bad = read(path)
    assert not bad
    assert prompts(items) == ['two\nlines, "quoted"', "plain"]
    assert [(item.custom_id, item.line) for item in items] == [("a", 2), ("r.csv:4", 4)]
    assert items[0].sampling == {"temperature": 0.5, "max_tokens": 8}
    assert items[0].metadata == {"k": 1}
    assert items[1].sampling == {}


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("prompt,max_tokens\na,many\n", 2, "option max_tokens: input should be a valid integer"),
        ("prompt,x\na\n", 2, "1 columns where the header has 2"),
        ("prompt,prompt\na,b\n", 1, 'the header names column "prompt" twice'),
        ("prompt,\na,b\n", 1, "column 2 of the header has no name"),
        ("prompt,colour\na,red\n", 2, 'unknown option "colour"'),
        ('prompt\n"a\n', 2, "not CSV: unexpected end of data"),
        ("prompt,metadata\na,{\n", 2, "column metadata is not JSON"),
        ("prompt\ncaf\udce9\n", 2, "not UTF-8: byte 0xe9 at byte offset 10"),
    ],
)
def test_each_csv_mistake_is_named(tmp_path: Path, source: str, line: int, message: str) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(source.encode(errors="surrogateescape"))
    items, bad = read(path)
    assert items == []
    assert bad[0].startswith(f"{path}:{line}: {message}")
