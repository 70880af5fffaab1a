"""Lines of a file as bytes arrive: decoded one by one, so that one bad line spoils no other."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

# A line longer than this is taken for a file that is not what its name says.
MAX_LINE_BYTES = 32 * 1024 * 1024


@dataclass(slots=True)
class Line:
    number: int
    text: str
    problem: str | None = None  # why the text cannot be trusted


def bad_utf8(error: UnicodeDecodeError, offset: int) -> str:
    """The message for bytes that are not UTF-8; offset is that of what was being decoded."""
    at = offset + error.start
    value = error.object[error.start]
    hint = "; it looks like UTF-16" if at == 0 and value in (0xFE, 0xFF) else ""
    return f"not UTF-8: byte 0x{value:02x} at byte offset {at}{hint}; save it as UTF-8"


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Every line without its end; a byte order mark is tolerated."""
    offset = number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        start, offset = offset, offset + len(raw)
        if len(raw) > MAX_LINE_BYTES:
            yield Line(number, "", f"longer than {MAX_LINE_BYTES >> 20} MiB; nothing after it is read")
            return
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw = raw[3:]
            start = 3
        try:
            yield Line(number, raw.decode().rstrip("\r\n"))
        except UnicodeDecodeError as error:
            yield Line(number, raw.decode(errors="replace").rstrip("\r\n"), bad_utf8(error, start))
