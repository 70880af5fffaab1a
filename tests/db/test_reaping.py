"""What a reaper's pass does, and when it must not."""

from datetime import timedelta

from sqlalchemy import Engine, update

from db import batches, queue, schema
from db.clock import now
from db.connect import connect, reading, writing
from db.reaping import ReapReport, reap
from db.tables import BatchStatus, Prompt, PromptStatus, ReaperTick
from tests.db.given import (
    LEASE_SECONDS,
    PAIR,
    answered,
    claimed,
    new_batch,
    new_prompt,
    prompt_row,
    statuses,
    submitted,
    worker,
)


def pass_by(database: Engine, lease_seconds: float = LEASE_SECONDS, crash_limit: int = 3) -> ReapReport:
    """A reaper's pass where one has just been: nobody was away."""
    with writing(database) as conn:
        conn.execute(update(ReaperTick).values(ticked_at=now(conn), quiet_until=None))
        return reap(conn, lease_seconds, crash_limit)


def let_leases_end(database: Engine) -> None:
    with writing(database) as conn:
        ended = now(conn) - timedelta(seconds=1)
        conn.execute(update(Prompt).where(Prompt.status == PromptStatus.RUNNING).values(lease_until=ended))


def test_an_ended_lease_returns_the_prompt_and_counts_a_crash(database: Engine) -> None:
    submitted(database, "a", "b")
    claimed(database, limit=1)
    let_leases_end(database)

    report = pass_by(database)

    assert (report.expired_leases, report.poisoned, report.skipped) == (1, 0, False)
    row = prompt_row(database, "a")
    assert (row.status, row.attempt, row.crashes) == (PromptStatus.PENDING, 2, 1)
    assert (row.owner, row.lease_until, row.error_code) == (None, None, None)


def test_a_lease_that_has_not_ended_is_left_alone(database: Engine) -> None:
    submitted(database, "a")
    claimed(database)
    assert pass_by(database).expired_leases == 0
    assert prompt_row(database, "a").status == PromptStatus.RUNNING


def test_a_completion_after_the_reaper_is_refused(database: Engine) -> None:
    submitted(database, "a")
    worker(database)
    late = claimed(database)
    let_leases_end(database)
    pass_by(database)

    assert answered(database, late) == set()
    [again] = claimed(database)
    assert answered(database, late) == set()  # also while another holds it
    assert answered(database, [again]) == {again.prompt_id}


def test_a_lease_that_ended_but_was_not_reaped_still_completes(database: Engine) -> None:
    submitted(database, "a")
    worker(database)
    prompts = claimed(database)
    let_leases_end(database)

    assert answered(database, prompts) == {prompts[0].prompt_id}
    assert pass_by(database).expired_leases == 0


def test_a_lease_that_ended_but_was_not_reaped_can_be_renewed(database: Engine) -> None:
    submitted(database, "a")
    [prompt] = claimed(database)
    let_leases_end(database)
    with writing(database) as conn:
        assert queue.renew(conn, "worker-1", [prompt.lease], LEASE_SECONDS) == {prompt.lease}
    assert pass_by(database).expired_leases == 0


def test_a_prompt_that_outlives_three_workers_is_poison(database: Engine) -> None:
    batch_id = submitted(database, "a")
    for crashes in (1, 2, 3):
        if not claimed(database):  # it runs alone now
            with writing(database) as conn:
                queue.claim_suspect(conn, PAIR, "worker-1", LEASE_SECONDS)
        let_leases_end(database)
        report = pass_by(database)
        assert prompt_row(database, "a").crashes == crashes

    assert (report.poisoned, report.ended_batches) == (1, [batch_id])
    row = prompt_row(database, "a")
    assert (row.status, row.error_code) == (PromptStatus.FAILED, "poison")
    assert "died or went silent, 3 times" in row.error_message
    assert row.ended_at is not None
    assert claimed(database) == []


def test_a_release_is_no_crash(database: Engine) -> None:
    submitted(database, "a")
    for _ in range(5):
        [prompt] = claimed(database)
        with writing(database) as conn:
            queue.release(conn, "worker-1", [prompt.lease])
    assert prompt_row(database, "a").crashes == 0


def test_the_first_pass_after_a_gap_leaves_leases_alone_for_one_lease(database: Engine) -> None:
    """Everyone was away: the living must get to renew before anyone is declared dead."""
    submitted(database, "a")
    claimed(database)
    let_leases_end(database)
    lease_seconds = 10.0

    def tick(seconds_since_the_last: float) -> ReapReport:
        """Time passes: both marks move into the past by as much."""
        with writing(database) as conn:
            past = timedelta(seconds=seconds_since_the_last)
            row = conn.execute(ReaperTick.__table__.select()).one()
            quiet = None if row.quiet_until is None else row.quiet_until - past
            conn.execute(update(ReaperTick).values(ticked_at=row.ticked_at - past, quiet_until=quiet))
            return reap(conn, lease_seconds)

    assert tick(0).skipped  # no reaper had ever run
    assert tick(4).skipped
    assert tick(4).skipped
    report = tick(4)  # 12 s after the first: quiet no longer
    assert (report.skipped, report.expired_leases) == (False, 1)
    assert not tick(4.9).skipped
    assert tick(5.1).skipped  # longer than half a lease without any reaper


def test_reapers_at_the_same_time_let_one_through(postgres_url: str) -> None:
    """On SQLite the second would wait: it has one writer at a time."""
    database = connect(postgres_url)
    schema.upgrade(database)
    with writing(database) as first, writing(database) as second:
        reap(first, LEASE_SECONDS)
        assert reap(second, LEASE_SECONDS).skipped
    database.dispose()


def test_a_deadline_expires_what_has_not_ended_and_then_the_batch(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "done", "running", "pending", completion_window=timedelta(hours=1))
    done, running = claimed(database, limit=2)
    answered(database, [done])
    assert pass_by(database).expired_prompts == 0
    with writing(database) as conn:
        assert (batches.get(conn, batch_id).deadline or now(conn)) > now(conn) + timedelta(minutes=59)
        past = {"deadline": now(conn) - timedelta(seconds=1)}
        conn.execute(batches.Batch.__table__.update().values(past))

    report = pass_by(database)

    assert (report.expired_prompts, report.ended_batches) == (2, [batch_id])
    with reading(database) as conn:
        assert statuses(conn, batch_id) == {"done": "succeeded", "running": "expired", "pending": "expired"}
        batch = batches.get(conn, batch_id)
    assert batch.status == BatchStatus.EXPIRED
    assert batch.expired_at is not None
    assert batch.completed_at is None
    assert answered(database, [running]) == set()
    assert pass_by(database).ended_batches == []


def test_a_deadline_met_is_a_batch_completed(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "a", completion_window=timedelta(seconds=0))
    with writing(database) as conn:
        # Claimed in time, finished late, and not reaped meanwhile: what is finished counts.
        conn.execute(batches.Batch.__table__.update().values(deadline=None))
    prompts = claimed(database)
    with writing(database) as conn:
        conn.execute(batches.Batch.__table__.update().values(deadline=now(conn) - timedelta(seconds=1)))
    answered(database, prompts)
    with writing(database) as conn:
        assert queue.finish_batches(conn) == [batch_id]
        assert batches.get(conn, batch_id).status == BatchStatus.COMPLETED


def test_a_submission_that_is_not_sealed_does_not_expire(database: Engine) -> None:
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch(deadline=now(conn) - timedelta(seconds=1)))
        batches.add_prompts(conn, batch_id, 0, [new_prompt("a")])
    assert pass_by(database).expired_prompts == 0
