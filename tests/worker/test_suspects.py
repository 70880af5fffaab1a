"""A prompt that was there at two deaths runs alone; the worker's other work goes on around it."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from db.connect import writing
from db.fleet import register_worker
from db.tables import SUSPECTED_AT, Prompt, Worker, WorkerState
from tests.worker.bench import Bench
from tests.worker.queued import Queued, submit, workers
from tests.worker.waiting import until


def suspect(batch: Queued, *custom_ids: str) -> None:
    with writing(batch.db) as conn:
        conn.execute(update(Prompt).where(Prompt.custom_id.in_(custom_ids)).values(crashes=SUSPECTED_AT))


def seen(bench: Bench) -> list[str]:
    return [prompt for prompt, _ in bench.engine.seen]


def let_it_turn(bench: Bench) -> None:
    """Whatever the runner would do by now, it has done."""
    turns = bench.runner.vitals().turns
    until(lambda: bench.runner.vitals().turns > turns + 2, "the runner has looked again, and again")


@pytest.fixture
def busy(bench: Bench) -> Queued:
    """A worker that runs p0, with p1 done, p2 a suspect and p3 waiting."""
    bench.engine.held = {"question 0", "question 2"}
    batch = submit(bench.db, [{}] * 4)
    bench.runner.hear()
    until(lambda: batch.statuses() == ["running", "succeeded", "pending", "pending"], "it is busy")
    suspect(batch, "p2")
    return batch


def test_an_idle_worker_runs_suspects_one_by_one(bench: Bench) -> None:
    bench.engine.held = {"question 2"}
    batch = submit(bench.db, [{}] * 4)
    suspect(batch, "p2", "p3")
    bench.runner.hear()
    bench.runner.hear()
    until(lambda: seen(bench), "the first is in the engine")
    let_it_turn(bench)
    assert seen(bench) == ["question 2"], "nothing runs beside it, although there is room and a bell"

    bench.engine.held = {"question 3"}
    until(lambda: len(seen(bench)) > 1, "the next is in the engine")
    let_it_turn(bench)
    assert seen(bench) == ["question 2", "question 3"]

    bench.engine.held.clear()
    bench.work()
    assert set(batch.statuses()) == {"succeeded"}


def test_the_eldest_claims_no_more_until_it_can_run_a_suspect_alone(bench: Bench, busy: Queued) -> None:
    bell = bench.runner.hear()
    let_it_turn(bench)
    assert busy.statuses() == ["running", "succeeded", "pending", "pending"]
    assert not bell.has_ended, "the bell waits as well"

    bench.engine.held.remove("question 0")
    until(lambda: busy.statuses()[2] == "running", "the suspect runs")
    let_it_turn(bench)
    assert busy.statuses() == ["succeeded", "succeeded", "running", "pending"]

    bench.engine.held.clear()
    bench.work()
    assert set(busy.statuses()) == {"succeeded"}


def test_the_others_work_on_while_the_eldest_sees_to_suspects(bench: Bench, busy: Queued) -> None:
    with writing(bench.db) as conn:
        mine = workers(bench.db)[0]._asdict()
        columns = {name: mine[name] for name in mine if not name.endswith("_at")}
        register_worker(conn, **columns | {"id": "worker_0", "state": WorkerState.READY})
        started = mine["started_at"] - timedelta(seconds=5)
        conn.execute(update(Worker).where(Worker.id == "worker_0").values(started_at=started))

    bench.runner.hear()
    until(lambda: busy.statuses() == ["running", "succeeded", "pending", "succeeded"], "p3 is done")


def test_a_suspect_that_another_took_is_not_waited_for(bench: Bench, busy: Queued) -> None:
    bench.runner.hear()
    let_it_turn(bench)
    with writing(bench.db) as conn:
        conn.execute(update(Prompt).where(Prompt.custom_id == "p2").values(status="running"))
    bench.engine.held.remove("question 0")
    until(lambda: busy.statuses() == ["succeeded", "succeeded", "running", "succeeded"], "p3 is done")
