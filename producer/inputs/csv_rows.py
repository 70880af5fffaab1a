"""Rows of *.csv files: the header names the fields, an empty cell is a field not given."""

import csv
from collections.abc import Iterator
from typing import BinaryIO

from producer.inputs.item import RowError
from producer.inputs.lines import MAX_LINE_BYTES, read_lines
from producer.inputs.storable import check_storable

Cells = dict[str, str]


def read_csv(stream: BinaryIO) -> Iterator[tuple[int, Cells | RowError]]:
    problems: list[str] = []

    def lines() -> Iterator[str]:
        for line in read_lines(stream):
            if line.problem:
                problems.append(line.problem)
            yield line.text + "\n"

    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(lines(), strict=True)
    header: list[str] | None = None
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if problems:
                raise RowError(problems.pop())
            if not cells:
                continue
            if header is None:
                header = _checked_header(cells)
                continue
            if len(cells) != len(header):
                raise RowError(f"{len(cells)} columns where the header has {len(header)}")
            row = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            check_storable(row)
            yield start, row
        except (csv.Error, RowError) as error:
            problems.clear()
            yield start, error if isinstance(error, RowError) else RowError(f"not CSV: {error}")
            if header is None:
                return


def _checked_header(names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    if "" in names:
        raise RowError(f"column {names.index('') + 1} of the header has no name")
    for name in names:
        if names.count(name) > 1:
            raise RowError(f'the header names column "{name}" twice')
    check_storable(names)
    return names
