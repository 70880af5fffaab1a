"""Rows of *.jsonl and *.json files, streamed."""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from producer.inputs.item import RowError
from producer.inputs.lines import bad_utf8, read_lines
from producer.inputs.storable import check_storable, looks_unstorable

Row = dict[str, Any]
CHUNK_BYTES = 1 << 20
MAX_ROW_CHARACTERS = 32 << 20  # a longer value is taken for broken JSON, and memory stays bounded


def _no_constant(name: str) -> Any:
    raise RowError(f"{name} is not JSON; use a number or null")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def decode_row(text: str) -> Row:
    """One row from its source text."""
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.pos + 1}") from None
    except RecursionError:
        raise RowError("nested too deeply") from None
    return _checked(value, text)


def _checked(value: Any, source: str) -> Row:
    if not isinstance(value, dict):
        raise RowError(f"expected an object with prompt or messages, got {type_name(value)}")
    row: Row = value
    if looks_unstorable(source):
        check_storable(row)
    return row


def type_name(value: Any) -> str:
    """A value's type in JSON's words, for messages."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    kind: type[Any] = type(value)
    return names.get(kind, kind.__name__)


def read_jsonl(stream: BinaryIO) -> Iterator[tuple[int, Row | RowError]]:
    """One object a line; blank lines are passed over."""
    for line in read_lines(stream):
        try:
            if line.problem:
                raise RowError(line.problem)
            if line.text and not line.text.isspace():
                yield line.number, decode_row(line.text)
        except RowError as error:
            yield line.number, error


def read_json(stream: BinaryIO) -> Iterator[tuple[int, Row | RowError]]:
    """A list of objects, or a single one. What follows broken JSON cannot be trusted and is not read."""
    window = _Window(stream)
    try:
        if window.peek() == "[":
            yield from _read_list(window)
        elif window.peek():
            yield window.line, window.take_row()
        if window.peek():
            raise RowError("more than one value; a file with one object a line is named .jsonl")
    except RowError as error:
        yield window.line, RowError(f"{error}; nothing after it is read")


def _read_list(window: "_Window") -> Iterator[tuple[int, Row | RowError]]:
    window.skip(1)
    separator = window.peek()
    while separator != "]":
        window.peek()
        line = window.line
        try:
            yield line, window.take_row()
        except RowError as error:
            if window.broken:
                raise
            yield line, error
        separator = window.peek()
        if separator not in (",", "]"):
            raise RowError(f"not JSON: expected , or ] at column {window.column}")
        if separator == ",":
            window.skip(1)
    window.skip(1)


class _Window:
    """A sliding view of a file's text that yields one JSON value at a time."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._fed = 0
        self._text = ""
        self._at = 0
        self._column0 = 0  # characters of the current line that have left the window
        self._ended = False
        self.line = 1
        self.broken = False

    @property
    def column(self) -> int:
        newline = self._text.rfind("\n", 0, self._at)
        return self._at - newline if newline >= 0 else self._column0 + self._at + 1

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if character not in " \t\r\n":
                    return character
                self.skip(1)
            if not self._more():
                return ""

    def skip(self, count: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def take_row(self) -> Row:
        while True:
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                reached = error.pos - self._at  # before the window slides
                if len(self._text) - self._at < MAX_ROW_CHARACTERS and self._more():
                    continue
                self.broken = True
                self.skip(reached)
                raise RowError(f"not JSON: {error.msg} at column {self.column}") from None
            except RowError:
                self.broken = True
                raise
            except RecursionError:
                self.broken = True
                raise RowError("nested too deeply") from None
            length = end - self._at  # before the window slides
            if end == len(self._text) and self._more():
                continue  # a number may go on in the next chunk
            source = self._text[self._at : self._at + length]
            self.skip(length)
            return _checked(value, source)

    def _more(self) -> bool:
        """Slide what was taken out of the window and read on; false at the end."""
        if self._ended:
            return False
        # A value that outgrows the window doubles it, so that decoding it again stays linear.
        raw = self._stream.read(max(CHUNK_BYTES, len(self._text) - self._at))
        pending = len(self._utf8.getstate()[0])
        try:
            new = self._utf8.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            self.broken = True
            raise RowError(bad_utf8(error, self._fed - pending)) from None
        self._fed += len(raw)
        self._ended = not raw
        self._column0 = self.column - 1
        self._text, self._at = self._text[self._at :] + new, 0
        return not self._ended or bool(new)
