"""A whole file as one prompt: *.txt, *.md, *.prompt."""

import codecs
from pathlib import Path

from producer.inputs.item import RowError
from producer.inputs.lines import bad_utf8
from producer.inputs.storable import check_storable


def read_prompt(path: Path) -> str:
    """The text without a byte order mark and without the one newline that editors add at the end."""
    raw = path.read_bytes()
    skipped = len(codecs.BOM_UTF8) if raw.startswith(codecs.BOM_UTF8) else 0
    try:
        text = raw[skipped:].decode()
    except UnicodeDecodeError as error:
        raise RowError(bad_utf8(error, skipped)) from None
    if not text.strip():
        raise RowError("empty; a prompt file holds the prompt's text")
    check_storable(text)
    return text.removesuffix("\n").removesuffix("\r")
