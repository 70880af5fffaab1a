"""--template makes the prompt from a row's fields."""

import json
from pathlib import Path

import pytest

from producer.inputs import InputError
from producer.inputs.template import PromptTemplate
from tests.producer.inputs.reading import prompts, read


def template(tmp_path: Path, source: str) -> PromptTemplate:
    path = tmp_path / "prompt.j2"
    path.write_text(source)
    return PromptTemplate(path)


def test_a_files_text_is_the_variable_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the sea")
    made = template(tmp_path, "Write about {{ prompt | upper }}.")
    assert prompts(read(tmp_path / "a.txt", template=made)[0]) == ["Write about THE SEA."]


def test_every_field_is_a_variable_and_stays_visible_as_metadata(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(
        json.dumps({"word": "oak", "language": "Dutch", "temperature": 0.5, "metadata": {"k": 1}})
    )
    items, bad = read(path, template=template(tmp_path, "{{ word }} in {{ language }}?"))
    assert not bad
    assert prompts(items) == ["oak in Dutch?"]
    assert items[0].sampling == {"temperature": 0.5}
    assert items[0].metadata == {"word": "oak", "language": "Dutch", "k": 1}


def test_csv_columns_are_variables(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("word\noak\nelm\n")
    items, _ = read(tmp_path / "r.csv", template=template(tmp_path, "Define {{ word }}."))
    assert prompts(items) == ["Define oak.", "Define elm."]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ title }}", "--template fails on this row: 'title' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "--template fails on this row: access to attribute '__class__'"),
        ("{{ prompt / 2 }}", "--template fails on this row: unsupported operand"),
        ("{{ '' }}", "the prompt is empty"),
    ],
)
def test_a_row_it_fails_on_is_a_bad_item(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"prompt": "a"}\n')
    items, bad = read(path, template=template(tmp_path, source))
    assert items == []
    assert bad[0].startswith(f"{path}:1: {message}")


def test_broken_syntax_is_named_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prompt\.j2:2: not a Jinja template"):
        template(tmp_path, "a\n{% if %}")


def test_messages_cannot_go_through_a_template(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}')
    _, bad = read(tmp_path / "r.jsonl", template=template(tmp_path, "{{ prompt }}"))
    assert "has messages; --template needs prompt" in bad[0]
