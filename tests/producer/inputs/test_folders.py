"""Which files of a folder are read, in which order, under which names."""

import os
from pathlib import Path

import pytest

from producer.inputs import InputOptions, Reader
from tests.producer.inputs.reading import read


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"prompt {name}")


def test_a_folder_is_read_recursively_in_order_of_relative_paths(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a.txt", "a/z.md", "a/b/c.prompt", "a-b.txt", "aa.txt")
    items, bad = read(tmp_path)
    names = [item.custom_id for item in items]
    assert not bad
    assert names == sorted(names) == ["a-b.txt", "a.txt", "a/b/c.prompt", "a/z.md", "aa.txt", "b.txt"]


def test_hidden_files_and_other_kinds_are_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", ".hidden.txt", ".git/config.txt", "photo.png", "notes.PNG", "Makefile")
    reader = Reader([tmp_path], InputOptions())
    assert len(list(reader)) == 1
    assert reader.skipped.hidden == 2
    assert reader.skipped.other_kinds == {".png": 2, "no suffix": 1}


def test_of_several_paths_each_name_begins_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "one/a.txt", "two/a.txt", "b.txt")
    items, bad = read(Path("one"), Path("./two/"), Path("b.txt"))
    assert not bad
    assert [item.custom_id for item in items] == ["one/a.txt", "two/a.txt", "b.txt"]


def test_a_single_file_is_named_by_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, "sub/a.txt")
    assert read(tmp_path / "sub" / "a.txt")[0][0].custom_id == "a.txt"


def test_include_and_exclude_match_relative_paths(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "a.md", "drafts/b.txt", "final/c.txt")
    items, _ = read(tmp_path, include=["*.txt"], exclude=["drafts/*"])
    assert [item.custom_id for item in items] == ["a.txt", "final/c.txt"]


def test_the_limit_counts_good_items(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "c.txt", "d.txt")
    (tmp_path / "a.txt").write_text("")
    items, bad = read(tmp_path, limit=2)
    assert [item.custom_id for item in items] == ["b.txt", "c.txt"]
    assert len(bad) == 1


def test_a_symlink_that_leaves_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "secret.txt", "in/a.txt")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    items, bad = read(tmp_path / "in")
    assert [item.custom_id for item in items] == ["a.txt"]
    assert len(bad) == 2
    assert all(
        f"in/{name}: symlink leaves the folder" in line
        for name, line in zip(["link.txt", "up"], bad, strict=True)
    )


def test_a_symlink_inside_the_folder_is_read_and_a_loop_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "sub/b.txt")
    (tmp_path / "again.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    reader = Reader([tmp_path], InputOptions())
    assert [item.custom_id for item in reader if hasattr(item, "custom_id")] == [
        "a.txt",
        "again.txt",
        "sub/b.txt",
    ]
    assert reader.skipped.folder_links == 1


def test_a_broken_symlink_and_a_pipe_are_bad_items(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    _, bad = read(tmp_path)
    assert bad[0].endswith("gone.txt: symlink to nothing; remove it or restore its target")
    assert bad[1].endswith("pipe.txt: not a regular file")


def test_parquet_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "rows.parquet", "a.txt")
    items, bad = read(tmp_path)
    assert len(items) == 1
    assert "rows.parquet: Parquet is read by a later release" in bad[0]


def test_a_named_file_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "prompts.dat")
    assert "prompts.dat: unknown kind of file; expected *.txt, *.md" in read(tmp_path / "prompts.dat")[1][0]


def test_a_name_that_is_not_utf8_is_a_bad_item(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w") as file:  # noqa: PTH123 (pathlib takes no bytes)
        file.write("Why?")
    _, bad = read(tmp_path)
    assert "name is not UTF-8" in bad[0]
    bad[0].encode()


def test_files_are_read_one_by_one_and_one_that_went_away_is_a_bad_item(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b.jsonl", "c.txt")
    stream = iter(Reader([tmp_path], InputOptions()))
    next(stream)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "c.txt").unlink()
    left = [str(item) for item in stream]
    assert [line.rsplit("/", 1)[1] for line in left] == [
        "b.jsonl: cannot be read: No such file or directory",
        "c.txt: cannot be read: No such file or directory",
    ]
