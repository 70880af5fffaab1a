"""What the engine's plain blocks show reaches the batches that were in flight, and stands in nobody's way."""

from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Engine, select

from db import schema
from db.connect import connect, reading, writing
from db.reports import report
from db.tables import Comparison
from tests.worker.bench import Bench
from tests.worker.queued import rows, submit
from tests.worker.waiting import until
from worker.engine import Engine as GeneratingEngine
from worker.engine import FolderModel, Pair
from worker.engine.proof import Arm, Proof
from worker.engine.proof import Comparison as Measured
from worker.pairs import to_engine
from worker.spool import Spool
from worker.wire.declaration import FolderSource, PairSettings


def measured(*batch_ids: str, block: int = 1) -> Measured:
    """1.5x, with four rows in flight."""
    return Measured(block, frozenset(batch_ids), 4, Arm(100, 400, 2.0), Arm(50, 600, 2.0))


def test_a_comparison_is_stored_before_the_batch_has_ended(bench: Bench) -> None:
    """Told with the step that ends the last row: who waits for the batch finds it in the report."""
    batch = submit(bench.db, [{}])
    bench.engine.comparisons = [measured(batch.id)]
    bench.work()
    assert (batch.batch.status, batch.batch.speedup_vs_baseline) == ("completed", 1.5)
    (stored,) = rows(bench.db, select(Comparison.__table__))
    assert (stored.worker_id, stored.block, stored.rows_in_flight) == ("worker_1", 1, 4)
    assert (stored.plain_steps, stored.plain_tokens, stored.plain_seconds) == (100, 400, 2.0)
    assert (stored.speculative_steps, stored.speculative_tokens, stored.speculative_seconds) == (50, 600, 2.0)


def test_all_batches_in_flight_have_it(bench: Bench) -> None:
    one, other = submit(bench.db, [{}]), submit(bench.db, [{}])
    bench.engine.comparisons = [measured(one.id, other.id)]
    bench.work()
    assert [batch.batch.speedup_vs_baseline for batch in (one, other)] == [1.5, 1.5]
    assert {row.batches_in_flight for row in rows(bench.db, select(Comparison.__table__))} == {2}


def test_requests_are_measured_with_those_of_their_batch(bench: Bench) -> None:
    batch = submit(bench.db, [{"n": 2}, {}])
    bench.work()
    assert {request.group for _, request in bench.engine.seen} == {batch.id}


def test_a_comparison_outlives_an_outage(sqlite_url: str, tmp_path: Path) -> None:
    """Away is a SQLite file that another process keeps locked."""
    schema.upgrade(connect(sqlite_url))
    spool = Spool(tmp_path, "tests")
    bench = Bench(connect(f"{sqlite_url}?timeout=0.05"), spool)
    bench.engine.held = {"question 0"}
    batch = submit(connect(sqlite_url), [{}])
    bench.runner.hear()
    until(lambda: bench.engine.seen, "the prompt is in the engine")
    with writing(connect(sqlite_url)):
        bench.engine.comparisons = [measured(batch.id)]
        until(lambda: not bench.engine.comparisons, "the engine has told of it")
        bench.engine.held.clear()
        until(spool.files, "the result is on the disk")
    until(lambda: batch.statuses() == ["succeeded"], "the result is stored")
    until(lambda: batch.batch.speedup_vs_baseline == 1.5, "so is the comparison")
    bench.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_of_the_engine_reports_its_speedup(database: Engine, tiny_folder: Path, tmp_path: Path) -> None:
    """At temperature 1 hardly a draft is accepted: 16 answers of 50 tokens on 4 rows are some 200 steps."""
    pair = Pair(FolderModel(tiny_folder / "tiny"), dtype="float64", max_rows=4)
    engine = GeneratingEngine(pair, proof=Proof(0.5, block=20, random=Random(0)))
    bench = Bench(database, Spool(tmp_path, "tests"), in_place=engine)
    batch = submit(database, [{}] * 16, sampling={"temperature": 1.0, "max_tokens": 50, "min_tokens": 50})
    bench.work()
    bench.close()
    with reading(database) as conn:
        told = report(conn, batch.id)
    assert told.status == "completed"
    assert told.speedup_blocks > 1
    assert told.speedup_vs_baseline is not None
    assert told.speedup_low is not None
    assert told.speedup_high is not None
    assert 0 < told.speedup_low <= told.speedup_vs_baseline <= told.speedup_high
    for row in rows(database, select(Comparison.__table__)):
        assert row.plain_tokens <= row.plain_steps * row.rows_in_flight, "a token a row, prompts give none"


def test_a_pair_declares_how_many_steps_prove_its_drafter() -> None:
    target = FolderSource(folder="somewhere")
    assert to_engine(PairSettings(target=target), "cpu").baseline_share == 0.02
    assert to_engine(PairSettings(target=target, baseline_share=0), "cpu").baseline_share == 0.0
