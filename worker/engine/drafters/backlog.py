"""Features of positions that a network has not taken in yet: many at once take far less time than few."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.cache import Chunk
from worker.engine.rows import Row


@dataclass(slots=True)
class _Pieces:
    start: int
    end: int
    features: list[Tensor]


class Backlog:
    """Of each row the newest positions, without gaps."""

    def __init__(self) -> None:
        self._passes: list[tuple[Sequence[Row], Sequence[Chunk], Tensor]] = []  # not sorted by row yet
        self._rows: dict[Row, _Pieces] = {}
        self._starts: dict[Row, int] = {}  # the first position of each, also of those not sorted yet
        self.num_bytes = 0  # held, at most: a piece holds all that came with it

    def add(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor) -> None:
        """Features [T, m * d] of a pass over these chunks, one of each row.

        What was known of a row from its chunk's start on was not accepted.
        """
        self._passes.append((rows, chunks, features))
        for row, chunk in zip(rows, chunks, strict=True):
            self._starts.setdefault(row, chunk.start)
        self.num_bytes += features.nbytes

    def _sort(self) -> None:
        for rows, chunks, features in self._passes:
            end = 0
            for row, chunk in zip(rows, chunks, strict=True):
                begin, end = end, end + len(chunk.token_ids)
                if row in self._starts:
                    self._add(row, chunk.start, features[begin:end])
        self._passes.clear()

    def _add(self, row: Row, start: int, features: Tensor) -> None:
        known = self._rows.get(row)
        if known is None or not known.start < start <= known.end:
            self._rows[row] = _Pieces(start, start + len(features), [features])
            return
        while (excess := known.end - start) > 0:
            last = known.features.pop()
            if len(last) > excess:
                known.features.append(last[: len(last) - excess])
            known.end -= min(excess, len(last))
        known.features.append(features)
        known.end += len(features)

    @property
    def rows(self) -> list[Row]:
        return list(self._starts)

    def take(self, rows: Sequence[Row]) -> tuple[list[Row], list[Chunk], Tensor]:
        """The rows that have any, where their positions are (of whatever tokens), and features [T, m * d]."""
        self._sort()
        some = [row for row in rows if row in self._rows]
        taken = [self._rows[row] for row in some]
        chunks = [
            Chunk(row.slot, pieces.start, (0,) * (pieces.end - pieces.start), num_logits=0)
            for row, pieces in zip(some, taken, strict=True)
        ]
        features = [piece for pieces in taken for piece in pieces.features]
        for row in some:
            self.drop(row)
        return some, chunks, torch.cat(features) if features else torch.empty(0)

    def start(self, row: Row, otherwise: int) -> int:
        """The first of the row's positions that it has."""
        return self._starts.get(row, otherwise)

    def drop(self, row: Row) -> None:
        self._starts.pop(row, None)
        self._rows.pop(row, None)
        if not self._starts:
            self._passes.clear()
            self.num_bytes = 0
