"""A batch that a real worker runs, while people pause, resume, cancel and overtake it."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, update

from db.clock import now
from db.connect import writing
from db.tables import Batch
from producer.cli import main
from tests.worker.queued import Queued, workers
from tests.worker.started import Start
from tests.worker.waiting import until

WITHIN = 10.0  # seconds in which status must show what was asked for
LONG = {"sampling": {"max_tokens": 200}}


def producer(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def soon(condition: Callable[[], object], what: str) -> None:
    start = time.monotonic()
    until(condition, what)
    assert time.monotonic() - start < WITHIN, f"too long until {what}"


def test_a_running_batch_is_paused_resumed_cancelled_and_taken_up_again(
    start: Start, submit_tiny: Callable[..., Queued]
) -> None:
    batch = submit_tiny([LONG] * 400, {"temperature": 1.0})
    started = start()
    until(lambda: {"running", "succeeded"} <= set(batch.statuses()), "it runs")

    assert producer("pause", batch.id) == f"{batch.id} is paused\n"
    soon(lambda: "running" not in batch.statuses(), "what ran was given back")
    done = batch.statuses().count("succeeded")
    time.sleep(1.0)  # three renewals: nothing of it is claimed, nothing evicted comes in late
    assert batch.statuses().count("succeeded") == done < 400
    assert batch.statuses().count("pending") == 400 - done
    assert {prompt.crashes for prompt in batch.prompts()} == {0}

    producer("resume", batch.id)
    soon(lambda: batch.statuses().count("succeeded") > done, "it goes on")

    producer("cancel", batch.id)
    kept = batch.statuses().count("succeeded")
    assert set(batch.statuses()) == {"succeeded", "cancelled"}
    assert batch.batch.status == "cancelled"
    assert len(batch.samples()) == kept

    after = submit_tiny([{}] * 3)
    soon(lambda: after.batch.status == "completed", "the worker is free for the next batch")
    assert batch.statuses().count("succeeded") == kept
    again = next(prompt.custom_id for prompt in batch.prompts() if prompt.status == "cancelled")
    producer("retry", batch.id, "--custom-id", again)
    soon(lambda: batch.statuses().count("succeeded") == kept + 1, "the one retried has succeeded")
    until(lambda: batch.batch.status == "cancelled", "it has ended again")
    assert len(batch.samples()) == kept + 1

    assert len(workers(batch.db)) == 1, "one process did all of it"
    assert started.stop() == 0
    assert "Traceback" not in started.said()


def test_a_small_batch_behind_a_huge_one_starts_within_seconds(
    start: Start, submit_tiny: Callable[..., Queued]
) -> None:
    huge = submit_tiny([LONG] * 1000, {"temperature": 1.0})
    started = start()
    until(lambda: "succeeded" in huge.statuses(), "the huge one runs")

    small = submit_tiny([{}] * 4)
    soon(lambda: small.batch.status == "completed", "the small one is done")

    waits = [(prompt.claimed_at - prompt.created_at).total_seconds() for prompt in small.prompts()]
    assert max(waits) < 5
    assert huge.batch.status == "in_progress"
    producer("cancel", huge.id)
    assert started.stop() == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_deadline_that_passes_while_it_runs_keeps_what_is_finished(
    database: Engine, start: Start, submit_tiny: Callable[..., Queued]
) -> None:
    batch = submit_tiny([LONG] * 1000, {"temperature": 1.0})
    started = start()
    until(lambda: "succeeded" in batch.statuses(), "it runs")
    with writing(database) as conn:
        conn.execute(update(Batch).values(deadline=now(conn) + timedelta(seconds=1)))
    soon(lambda: batch.batch.status == "expired", "it has expired")
    kept = batch.statuses().count("succeeded")
    assert set(batch.statuses()) == {"succeeded", "expired"}
    after = submit_tiny([{}])
    soon(lambda: after.batch.status == "completed", "the worker is free for the next batch")
    assert len(batch.samples()) == kept
    assert started.stop() == 0
