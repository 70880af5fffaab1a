"""Running ended prompts again."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event

import pytest
from sqlalchemy import Engine, func, select, update

from db import actions, batches, queue, schema
from db.clock import now
from db.connect import connect, reading, writing
from db.errors import ActionRefused
from db.queue import Failed
from db.reaping import reap
from db.retrying import Retried, retry
from db.tables import Batch, BatchStatus, Prompt, PromptStatus, Sample
from tests.db.given import answered, claimed, prompt_row, sample, statuses, submitted, worker
from tests.db.test_actions import batch, cancelled, status_of


def ended(database: Engine, good: str, bad: str, **changes: object) -> str:
    """A completed batch: one prompt succeeded, the other failed for good after a crash."""
    batch_id = submitted(database, good, bad, **changes)
    worker(database)
    first, second = claimed(database)
    answered(database, [first])
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(second.lease, "poison", "no")])
        conn.execute(update(Prompt).where(Prompt.custom_id == bad).values(crashes=3))
    with writing(database) as conn:
        queue.finish_batches(conn)
    return batch_id


def retried(database: Engine, batch_id: str, *names: str, **options: object) -> Retried:
    with writing(database) as conn:
        return retry(conn, batch_id, custom_ids=names or None, **options)  # type: ignore[arg-type]  (options are passed on)


def test_a_failed_prompt_waits_as_if_it_had_never_run_and_the_batch_is_open_again(database: Engine) -> None:
    batch_id = ended(database, "good", "bad")

    found = retried(database, batch_id)

    assert (found.prompts, found.reopened) == (1, True)
    assert status_of(database, batch_id) == {"good": "succeeded", "bad": "pending"}
    row = prompt_row(database, "bad")
    assert (row.attempt, row.crashes, row.error_code, row.error_message) == (2, 0, None, None)
    assert (row.ended_at, row.claimed_at, row.rung_at, row.rendered) == (None, None, None, None)
    again = batch(database, batch_id)
    assert again.status == BatchStatus.IN_PROGRESS
    assert (again.completed_at, again.finalizing_at) == (None, None)

    answered(database, claimed(database))
    with writing(database) as conn:
        assert queue.finish_batches(conn) == [batch_id]
    assert batch(database, batch_id).status == BatchStatus.COMPLETED


def test_a_second_retry_finds_nothing(database: Engine) -> None:
    batch_id = ended(database, "good", "bad")
    retried(database, batch_id)
    before = batch(database, batch_id)
    assert retried(database, batch_id) == Retried(0, False, False)
    assert batch(database, batch_id) == before


def test_a_batch_without_failures_stays_ended(database: Engine) -> None:
    batch_id = submitted(database)
    assert retried(database, batch_id).prompts == 0
    assert batch(database, batch_id).status == BatchStatus.COMPLETED


def test_failures_are_retried_while_the_rest_runs(database: Engine) -> None:
    batch_id = submitted(database, "bad", "running")
    bad, running = claimed(database)
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(bad.lease, "bad", "no")])

    found = retried(database, batch_id)

    assert (found.prompts, found.reopened) == (1, False)
    assert status_of(database, batch_id) == {"bad": "pending", "running": "running"}
    with writing(database) as conn:
        late = queue.complete(conn, "worker-1", [], [Failed(bad.lease, "bad", "no")])
        assert late == set(), "a write of the attempt that failed comes too late"
        assert queue.renew(conn, "worker-1", [running.lease], 60) == {running.lease}


def test_old_samples_go_in_the_same_transaction(database: Engine) -> None:
    batch_id = ended(database, "good", "bad")
    row = prompt_row(database, "bad")
    with writing(database) as conn:
        stray = sample() | {
            "prompt_id": row.id,
            "attempt": 1,
            "worker_id": "worker-1",
            "created_at": now(conn),
        }
        conn.execute(Sample.__table__.insert().values(stray))

    retried(database, batch_id)

    with reading(database) as conn:
        left = conn.execute(select(Prompt.custom_id).join(Sample, Sample.prompt_id == Prompt.id)).scalars()
        assert left.all() == ["good"]


def test_a_cancelled_batch_is_taken_up_where_it_was_left(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "done", "running", "pending")
    done, running = claimed(database, limit=2)
    answered(database, [done])
    cancelled(database, batch_id)

    assert retried(database, batch_id).prompts == 2

    assert status_of(database, batch_id) == {"done": "succeeded", "running": "pending", "pending": "pending"}
    again = batch(database, batch_id)
    assert (again.status, again.cancelling_at, again.cancelled_at) == ("in_progress", None, None)
    assert answered(database, [running]) == set()
    answered(database, claimed(database))
    with writing(database) as conn:
        queue.finish_batches(conn)
    assert batch(database, batch_id).status == BatchStatus.COMPLETED


def test_only_the_statuses_asked_for(database: Engine) -> None:
    """The batch ends as cancelled again: some of it still is."""
    batch_id = submitted(database, "bad", "pending")
    worker(database)
    [bad] = claimed(database, limit=1)
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(bad.lease, "bad", "no")])
    cancelled(database, batch_id)

    assert retried(database, batch_id, statuses=[PromptStatus.FAILED]).prompts == 1

    assert status_of(database, batch_id) == {"bad": "pending", "pending": "cancelled"}
    answered(database, claimed(database))
    with writing(database) as conn:
        queue.finish_batches(conn)
    assert batch(database, batch_id).status == BatchStatus.CANCELLED


def test_prompts_by_name_and_what_of_them_is_left_alone(database: Engine) -> None:
    batch_id = ended(database, "good", "bad")
    found = retried(database, batch_id, "bad", "good")
    assert (found.prompts, found.left) == (1, {"good": "succeeded"})
    assert retried(database, batch_id, "bad").left == {"bad": "pending"}


def test_an_unknown_name_changes_nothing(database: Engine) -> None:
    batch_id = ended(database, "good", "bad")
    with pytest.raises(ActionRefused, match='has no prompt "worse"; nothing is retried'):
        retried(database, batch_id, "bad", "worse")
    assert batch(database, batch_id).status == BatchStatus.COMPLETED


def test_expired_prompts_get_a_new_deadline_or_none(database: Engine) -> None:
    batch_id = submitted(database, "a", completion_window=timedelta(hours=1))

    def expire() -> None:
        with writing(database) as conn:
            conn.execute(update(Batch).values(deadline=now(conn) - timedelta(seconds=1)))
            reap(conn, 60)
        assert batch(database, batch_id).status == BatchStatus.EXPIRED

    expire()
    assert retried(database, batch_id) == Retried(1, True, True)
    again = batch(database, batch_id)
    assert (again.deadline, again.expired_at) == (None, None)

    expire()
    assert retried(database, batch_id, completion_window=timedelta(hours=1)) == Retried(1, True, False)
    with reading(database) as conn:
        assert (batches.get(conn, batch_id).deadline or now(conn)) > now(conn) + timedelta(minutes=59)
        assert statuses(conn, batch_id) == {"a": "pending"}


def test_a_paused_batch_stays_paused_one_that_ended_paused_does_not(database: Engine) -> None:
    open_batch = submitted(database, "bad", "pending")
    [bad] = claimed(database, limit=1)
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(bad.lease, "bad", "no")])
        actions.pause(conn, open_batch)
    retried(database, open_batch)
    assert batch(database, open_batch).paused_at is not None

    with writing(database) as conn:
        conn.execute(update(Batch).values(status="completed"))
        conn.execute(update(Prompt).values(status="failed"))
    retried(database, open_batch)
    assert batch(database, open_batch).paused_at is None


@pytest.mark.parametrize("status", ["validating", "cancelling"])
def test_a_batch_that_is_not_settled_is_refused(database: Engine, status: str) -> None:
    batch_id = ended(database, "good", "bad")
    with writing(database) as conn:
        conn.execute(update(Batch).values(status=status))
    with pytest.raises(ActionRefused, match=f"is {status}: wait for its end, then retry"):
        retried(database, batch_id)


def test_who_ends_batches_waits_for_a_retry_and_sees_it(postgres_url: str) -> None:
    """On PostgreSQL, where it would otherwise see the batch of after the retry, the prompts of before."""
    database = connect(postgres_url)
    schema.upgrade(database)
    batch_id = submitted(database, "good", "bad")
    worker(database)
    good, bad = claimed(database)
    answered(database, [good])
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(bad.lease, "bad", "no")])
    asked = Event()

    def finish() -> list[str]:
        with writing(database) as conn:
            asked.set()
            return list(queue.finish_batches(conn))

    with ThreadPoolExecutor(1) as pool:
        with writing(database) as conn:
            assert retry(conn, batch_id).prompts == 1
            ended_meanwhile = pool.submit(finish)
            assert asked.wait(10)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            with reading(database) as other:
                while not other.exec_driver_sql(waits).scalar_one():
                    assert not ended_meanwhile.done()
        assert ended_meanwhile.result(10) == []
    assert batch(database, batch_id).status == BatchStatus.IN_PROGRESS
    database.dispose()


def test_two_retries_at_once_count_each_prompt_once(database_url: str, database: Engine) -> None:
    batch_id = ended(database, "good", "bad")
    together = Barrier(2)

    def again(_number: int) -> int:
        engine = connect(database_url)
        together.wait()
        with writing(engine) as conn:
            found = retry(conn, batch_id)
        engine.dispose()
        return found.prompts

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(again, range(2))) == [0, 1]
    assert prompt_row(database, "bad").attempt == 2
    with reading(database) as conn:
        assert conn.execute(select(func.count()).select_from(Sample)).scalar_one() == 1
