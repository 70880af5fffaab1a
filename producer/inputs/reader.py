"""All items of a submission as one stream: named, limited, and each custom_id once."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from producer.inputs.csv_rows import read_csv
from producer.inputs.files import PROMPT_SUFFIXES, FileFinder, Skipped, SourceFile
from producer.inputs.item import BadItem, Item, RowError
from producer.inputs.json_rows import read_json, read_jsonl
from producer.inputs.prompt_file import read_prompt
from producer.inputs.rows import read_row, set_prompt
from producer.inputs.template import PromptTemplate

STDIN = Path("-")

Rows = Iterator[tuple[int, dict[str, Any] | RowError]]
ROW_READERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
}


@dataclass(frozen=True, slots=True)
class InputOptions:
    system: str | None = None  # prepended to chat prompts that have no system message of their own
    template: PromptTemplate | None = None
    raw: bool = False
    limit: int | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()


class Reader:
    """Iterate once; `skipped` is complete when the iteration is."""

    def __init__(self, paths: Sequence[Path], options: InputOptions) -> None:
        self._paths = paths
        self._options = options
        self._finder = FileFinder(options.include, options.exclude)
        self._first: dict[str, tuple[str, int | None]] = {}

    @property
    def skipped(self) -> Skipped:
        return self._finder.skipped

    def __iter__(self) -> Iterator[Item | BadItem]:
        good = 0
        for item in self._items():
            if self._options.limit is not None and good >= self._options.limit:
                return
            checked = self._claim_id(item) if isinstance(item, Item) else item
            good += isinstance(checked, Item)
            yield checked

    def _items(self) -> Iterator[Item | BadItem]:
        if list(self._paths) == [STDIN]:
            yield from self._rows(read_jsonl(sys.stdin.buffer), "<stdin>", "stdin", from_text=False)
            return
        for file in self._finder.find(self._paths):
            if isinstance(file, BadItem):
                yield file
                continue
            try:
                yield from self._file(file)
            except OSError as error:
                yield BadItem(str(file.path), None, f"cannot be read: {error.strerror}")

    def _file(self, file: SourceFile) -> Iterator[Item | BadItem]:
        suffix = file.path.suffix.lower()
        if suffix in PROMPT_SUFFIXES:
            yield self._prompt_file(file)
            return
        with file.path.open("rb") as stream:
            rows = ROW_READERS[suffix](stream)
            yield from self._rows(rows, str(file.path), file.name, from_text=suffix == ".csv")

    def _prompt_file(self, file: SourceFile) -> Item | BadItem:
        item = Item(str(file.path), custom_id=file.name)
        template = self._options.template
        try:
            prompt = read_prompt(file.path)
            set_prompt(item, template.render({"prompt": prompt}) if template else prompt, self._options.raw)
        except RowError as error:
            return BadItem(item.path, None, str(error))
        return self._with_system(item)

    def _rows(self, rows: Rows, path: str, name: str, *, from_text: bool) -> Iterator[Item | BadItem]:
        empty = True
        for line, row in rows:
            empty = False
            try:
                if isinstance(row, RowError):
                    raise row
                item = read_row(
                    row,
                    Item(path, line),
                    template=self._options.template,
                    raw=self._options.raw,
                    from_text=from_text,
                )
            except RowError as error:
                yield BadItem(path, line, str(error))
                continue
            item.custom_id = item.custom_id or f"{name}:{line}"
            yield self._with_system(item)
        if empty:
            yield BadItem(path, None, "empty; expected at least one row")

    def _with_system(self, item: Item) -> Item:
        system = self._options.system
        if system is not None and item.messages and item.messages[0]["role"] not in ("system", "developer"):
            item.messages = [{"role": "system", "content": system}, *item.messages]
        return item

    def _claim_id(self, item: Item) -> Item | BadItem:
        place = (item.path, item.line)
        path, line = self._first.setdefault(item.custom_id, place)
        if (path, line) == place:
            return item
        first = path if line is None else f"{path}:{line}"
        return BadItem(item.path, item.line, f'custom_id "{item.custom_id}" was already used at {first}; '
                       "each must be unique in its batch")  # fmt: skip
