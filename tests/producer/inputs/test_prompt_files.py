"""A *.txt, *.md or *.prompt file is one prompt."""

from pathlib import Path

import pytest

from tests.producer.inputs.reading import prompts, read


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.prompt", "A.TXT"])
def test_a_file_is_one_prompt_named_by_its_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("Why?\nBecause.\n")
    items, bad = read(tmp_path)
    assert not bad
    assert [item.custom_id for item in items] == [name]
    assert items[0].messages == [{"role": "user", "content": "Why?\nBecause."}]
    assert items[0].line is None


def test_only_the_last_newline_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"  indented\r\n\r\n")
    assert prompts(read(tmp_path)[0]) == ["  indented\r\n"]


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfWhy?")
    assert prompts(read(tmp_path)[0]) == ["Why?"]


@pytest.mark.parametrize("content", [b"", b" \n\t\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_a_bad_item(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty.txt").write_bytes(content)
    (tmp_path / "good.txt").write_text("Why?")
    items, bad = read(tmp_path)
    assert [item.custom_id for item in items] == ["good.txt"]
    assert bad == [f"{tmp_path / 'empty.txt'}: empty; a prompt file holds the prompt's text"]


def test_bad_utf8_is_named_with_its_byte_offset(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes("Gr\u00f6\u00dfe".encode() + b" caf\xe9")
    _, bad = read(tmp_path)
    assert bad == [f"{tmp_path / 'bad.txt'}: not UTF-8: byte 0xe9 at byte offset 11; save it as UTF-8"]


def test_utf16_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("Why?", encoding="utf-16")
    assert "it looks like UTF-16" in read(tmp_path)[1][0]


def test_a_nul_character_is_refused_as_databases_would(tmp_path: Path) -> None:
    (tmp_path / "nul.txt").write_bytes(b"a\x00b")
    assert "NUL character" in read(tmp_path)[1][0]


def test_a_system_message_goes_before_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Why?")
    items, _ = read(tmp_path, system="Be brief.")
    assert items[0].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]


def test_raw_text_is_no_chat(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once upon a time")
    items, _ = read(tmp_path, raw=True)
    assert (items[0].messages, items[0].text) == (None, "Once upon a time")
