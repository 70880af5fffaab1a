"""A batch's speed-up is what the comparisons of its workers say, whenever they say it."""

import pytest
from sqlalchemy import Engine, select

from db import batches, pruning
from db.bootstrap import interval
from db.connect import reading, writing
from db.reports import report
from db.speedups import NewComparison, block_speedups, record
from db.tables import Comparison
from tests.db.given import submitted, worker


def compared(batch_id: str, block: int, speedup: float, rows: int = 4, seconds: float = 2.0) -> NewComparison:
    """Plain steps gave `rows` tokens each, speculative ones so many more a second."""
    tokens = round(100 * rows * speedup)
    return NewComparison(batch_id, block, rows, 1, 100, 100 * rows, seconds, 50, tokens, seconds)


@pytest.fixture
def batch_id(database: Engine) -> str:
    worker(database)
    worker(database, "worker-2")
    return submitted(database, "a", "b")


def speedup(database: Engine, batch_id: str) -> tuple[float | None, float | None, float | None]:
    with reading(database) as conn:
        row = batches.get(conn, batch_id)
    return row.speedup_vs_baseline, row.speedup_low, row.speedup_high


def test_a_batch_without_a_comparison_has_no_speedup(database: Engine, batch_id: str) -> None:
    assert speedup(database, batch_id) == (None, None, None)


def test_one_block_gives_a_speedup_without_an_interval(database: Engine, batch_id: str) -> None:
    with writing(database) as conn:
        record(conn, "worker-1", [compared(batch_id, 1, 1.5)])
    assert speedup(database, batch_id) == (1.5, None, None)


def test_the_speedup_is_the_median_of_all_workers_blocks(database: Engine, batch_id: str) -> None:
    with writing(database) as conn:
        record(conn, "worker-1", [compared(batch_id, 1, 1.5), compared(batch_id, 2, 1.25)])
    with writing(database) as conn:
        record(conn, "worker-2", [compared(batch_id, 1, 1.75)])
    assert speedup(database, batch_id) == (1.5, 1.25, 1.75)
    with reading(database) as conn:
        told = report(conn, batch_id)
    assert (told.speedup_vs_baseline, told.speedup_low, told.speedup_high) == (1.5, 1.25, 1.75)
    assert told.speedup_blocks == 3


def test_within_a_block_each_number_of_rows_is_compared_with_its_own_plain_steps(
    database: Engine, batch_id: str
) -> None:
    """At 1 row 3x for 1 s, at 8 rows 1x for 3 s: the block's tokens took 4 s, and plain steps take 6 s."""
    with writing(database) as conn:
        record(conn, "worker-1", [compared(batch_id, 1, 3.0, 1, 1.0), compared(batch_id, 1, 1.0, 8, 3.0)])
        assert block_speedups(conn, batch_id) == [1.5]


def test_what_is_stored_twice_counts_once(database: Engine, batch_id: str) -> None:
    """The answer to a commit was lost, and the worker tries again."""
    for _ in range(2):
        with writing(database) as conn:
            record(conn, "worker-1", [compared(batch_id, 1, 1.5)])
    with reading(database) as conn:
        assert len(conn.execute(select(Comparison)).all()) == 1


def test_each_batch_in_flight_has_the_comparison(database: Engine, batch_id: str) -> None:
    other = submitted(database, "c")
    with writing(database) as conn:
        record(conn, "worker-1", [compared(batch_id, 1, 1.5), compared(other, 1, 1.5)])
    assert speedup(database, batch_id) == speedup(database, other) == (1.5, None, None)


def test_a_batch_that_was_pruned_meanwhile_is_passed_over(database: Engine, batch_id: str) -> None:
    with writing(database) as conn:
        record(conn, "worker-1", [compared("batch_gone", 1, 1.5), compared(batch_id, 1, 2.0)])
    assert speedup(database, batch_id)[0] == 2.0


def test_comparisons_go_with_their_batch(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database)
    with writing(database) as conn:
        record(conn, "worker-1", [compared(batch_id, 1, 1.5)])
        batches.seal(conn, batch_id, [], 0)
    with writing(database) as conn:
        while pruning.delete_some(conn, batch_id):
            pass
        assert not pruning.exists(conn, batch_id)
        assert conn.execute(select(Comparison)).all() == []


def test_the_interval_holds_the_median_and_narrows_with_more_blocks() -> None:
    few, many = [1.0, 1.2, 1.4], [1.0, 1.2, 1.4] * 30
    assert interval(few) == (1.0, 1.4)
    assert interval(many) == (1.2, 1.2)
    assert interval([1.1]) == (1.1, 1.1)
