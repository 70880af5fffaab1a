"""What waits to be taken in is each position's newest features, once."""

from dataclasses import dataclass, field
from typing import cast

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from worker.engine.cache import Chunk
from worker.engine.drafters.backlog import Backlog
from worker.engine.rows import Row


@dataclass(eq=False)
class SomeRow:
    """As much of a row as a backlog looks at."""

    slot: int
    newest: dict[int, float] = field(default_factory=dict[int, float])  # by position, what should be taken in


_BYTES = 3 * 4  # of a position's features


def _features(values: list[float]) -> Tensor:
    return torch.tensor(values)[:, None].expand(-1, 3)


# Steps of a few rows: how many tokens each chunk has, and how many of them are accepted.
STEPS = st.lists(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=3, max_size=3), max_size=12
)


@given(STEPS, st.sets(st.integers(0, 11)))
def test_a_rejected_position_is_replaced_by_what_came(
    steps: list[list[tuple[int, int]]], takes: set[int]
) -> None:
    backlog = Backlog()
    rows = [SomeRow(slot) for slot in range(3)]
    cached = [5, 9, 0]
    value = 0.0
    for number, step in enumerate(steps):
        chunks: list[Chunk] = []
        shown: list[float] = []
        for row, (length, accepted) in zip(rows, step, strict=True):
            start = cached[row.slot]
            values = [value := value + 1 for _ in range(length)]
            shown += values
            chunks.append(Chunk(row.slot, start, (7,) * length, num_logits=length))
            row.newest = {place: known for place, known in row.newest.items() if place < start}
            row.newest |= {start + i: known for i, known in enumerate(values)}
            cached[row.slot] += min(length, accepted)
        backlog.add(cast(list[Row], rows), chunks, _features(shown))
        if number in takes:
            _check(backlog, rows)
    _check(backlog, rows)
    assert backlog.rows == []


def _check(backlog: Backlog, rows: list[SomeRow]) -> None:
    assert backlog.num_bytes >= sum(len(row.newest) for row in rows) * _BYTES
    assert [backlog.start(cast(Row, row), 99) for row in rows] == [
        min(row.newest, default=99) for row in rows
    ]
    taken, chunks, features = backlog.take(backlog.rows)
    expected = {row.slot: row.newest for row in rows if row.newest}
    offset = 0
    for row, chunk in zip(taken, chunks, strict=True):
        length = len(chunk.token_ids)
        values: list[float] = features[offset : offset + length, 0].tolist()
        assert dict(enumerate(values, start=chunk.start)) == expected.pop(row.slot)
        offset += length
    assert not expected
    assert offset == len(features)
    for row in rows:
        row.newest = {}


def test_a_row_that_is_dropped_leaves_nothing() -> None:
    backlog = Backlog()
    row, other = cast(Row, SomeRow(0)), cast(Row, SomeRow(1))
    chunks = [Chunk(0, 0, (5, 5), num_logits=2), Chunk(1, 4, (5,), num_logits=1)]
    backlog.add([row, other], chunks, _features([1.0, 2.0, 3.0]))
    backlog.drop(row)
    backlog.drop(row)
    taken, chunks, _ = backlog.take([row, other])
    assert backlog.num_bytes == 0
    assert taken == [other]
    assert [(chunk.slot, chunk.start) for chunk in chunks] == [(1, 4)]
