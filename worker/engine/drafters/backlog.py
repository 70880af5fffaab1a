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
        self._rows: dict[Row, _Pieces] = {}

    def add(self, row: Row, start: int, features: Tensor) -> None:
        """Features [T, m * d] from position `start` on; what was known from there on was not accepted."""
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
        return list(self._rows)

    @property
    def num_tokens(self) -> int:
        return sum(pieces.end - pieces.start for pieces in self._rows.values())

    def take(self, rows: Sequence[Row]) -> tuple[list[Row], list[Chunk], Tensor]:
        """The rows that have any, where their positions are (of whatever tokens), and features [T, m * d]."""
        some = [row for row in rows if row in self._rows]
        taken = [self._rows.pop(row) for row in some]
        chunks = [
            Chunk(row.slot, pieces.start, (0,) * (pieces.end - pieces.start), num_logits=0)
            for row, pieces in zip(some, taken, strict=True)
        ]
        features = [piece for pieces in taken for piece in pieces.features]
        return some, chunks, torch.cat(features) if features else torch.empty(0)

    def drop(self, row: Row) -> None:
        self._rows.pop(row, None)
