"""What people do to a batch, while others hold prompts of it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, update

from db import actions, batches, queue
from db.batches import BatchRow
from db.clock import now
from db.connect import reading, writing
from db.errors import ActionRefused, UnknownBatch
from db.queue import Claimed
from db.reaping import reap
from db.tables import Batch, BatchStatus, Prompt
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

Action = Callable[[Connection, str], bool]


def do(database: Engine, action: Action, batch_id: str) -> bool:
    with writing(database) as conn:
        return action(conn, batch_id)


def cancelled(database: Engine, batch_id: str) -> int:
    """Cancelled to its end; how many prompts were."""
    do(database, actions.cancel, batch_id)
    with writing(database) as conn:
        count = actions.cancel_prompts(conn, batch_id)
    with writing(database) as conn:
        queue.finish_batches(conn)
    return count


def batch(database: Engine, batch_id: str) -> BatchRow:
    with reading(database) as conn:
        return batches.get(conn, batch_id)


def status_of(database: Engine, batch_id: str) -> dict[str, str]:
    with reading(database) as conn:
        return statuses(conn, batch_id)


def renewed(database: Engine, prompts: list[Claimed], owner: str = "worker-1") -> set[str]:
    """One beat of a worker: what its batch's pause asks back is released, the rest renewed."""
    leases = [prompt.lease for prompt in prompts]
    with writing(database) as conn:
        queue.release(conn, owner, actions.paused_leases(conn, leases))
        kept = queue.renew(conn, owner, leases, LEASE_SECONDS)
    return {prompt.custom_id for prompt in prompts if prompt.lease in kept}


# Cancel


def test_a_cancel_ends_pending_and_running_prompts_and_keeps_what_is_finished(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "done", "running", "pending")
    done, running = claimed(database, limit=2)
    answered(database, [done])

    assert cancelled(database, batch_id) == 2

    assert status_of(database, batch_id) == {
        "done": "succeeded",
        "running": "cancelled",
        "pending": "cancelled",
    }
    ended = batch(database, batch_id)
    assert ended.status == BatchStatus.CANCELLED
    assert ended.cancelling_at is not None
    assert ended.cancelled_at is not None
    row = prompt_row(database, "running")
    assert (row.attempt, row.owner, row.lease_until, row.crashes) == (2, None, None, 0)
    assert row.ended_at is not None
    assert renewed(database, [running]) == set()
    assert answered(database, [running]) == set(), "a holder's later write fails"


def test_a_batch_being_cancelled_is_not_claimed_and_its_running_prompts_may_still_end(
    database: Engine,
) -> None:
    worker(database)
    batch_id = submitted(database, "running", "pending")
    running = claimed(database, limit=1)
    assert do(database, actions.cancel, batch_id)
    assert claimed(database) == []
    assert answered(database, running) == {running[0].prompt_id}

    assert cancelled(database, batch_id) == 1

    assert status_of(database, batch_id) == {"running": "succeeded", "pending": "cancelled"}
    assert batch(database, batch_id).status == BatchStatus.CANCELLED


def test_a_second_cancel_changes_nothing(database: Engine) -> None:
    batch_id = submitted(database, "a")
    assert do(database, actions.cancel, batch_id)
    asked = batch(database, batch_id)
    assert not do(database, actions.cancel, batch_id)
    assert batch(database, batch_id) == asked
    assert cancelled(database, batch_id) == 1
    ended = batch(database, batch_id)
    assert cancelled(database, batch_id) == 0
    assert batch(database, batch_id) == ended


def test_a_completed_batch_stays_completed(database: Engine) -> None:
    batch_id = submitted(database)
    assert not do(database, actions.cancel, batch_id)
    assert batch(database, batch_id).status == BatchStatus.COMPLETED


def test_a_cancel_that_was_cut_off_is_finished_by_the_reaper(database: Engine) -> None:
    batch_id = submitted(database, *(f"p{number}" for number in range(30)))
    claimed(database, limit=10)
    do(database, actions.cancel, batch_id)

    with writing(database) as conn:
        assert reap(conn, LEASE_SECONDS).ended_batches == [batch_id]

    assert set(status_of(database, batch_id).values()) == {"cancelled"}


def test_only_a_batch_that_is_being_cancelled_loses_prompts(database: Engine) -> None:
    """The command's last look may come after somebody has retried the batch."""
    batch_id = submitted(database, "a")
    with writing(database) as conn:
        assert actions.cancel_prompts(conn, batch_id) == 0


def test_a_submission_that_is_not_sealed_is_not_cancelled(database: Engine) -> None:
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
    with pytest.raises(ActionRefused, match="still being submitted"):
        do(database, actions.cancel, batch_id)


# Pause and resume


def test_a_paused_batch_is_not_claimed_and_its_holder_gives_it_back_at_no_cost(database: Engine) -> None:
    batch_id = submitted(database, "running", "pending")
    other = submitted(database, "other")
    running = claimed(database, limit=1)

    assert do(database, actions.pause, batch_id)

    mine = running + claimed(database)
    assert {prompt.custom_id for prompt in mine} == {"running", "other"}
    assert renewed(database, mine) == {"other"}
    row = prompt_row(database, "running")
    assert (row.status, row.attempt, row.crashes) == ("pending", 2, 0)
    assert (row.owner, row.lease_until) == (None, None)
    assert batch(database, batch_id).status == BatchStatus.IN_PROGRESS
    assert batch(database, other).paused_at is None
    assert answered(database, running) == set()


def test_a_lease_that_is_another_s_by_now_is_not_released_for_a_pause(database: Engine) -> None:
    batch_id = submitted(database, "a")
    lost = claimed(database)
    with writing(database) as conn:
        queue.release(conn, "worker-1", [lost[0].lease])
    claimed(database, owner="worker-2")
    do(database, actions.pause, batch_id)

    assert renewed(database, lost) == set()

    assert prompt_row(database, "a").owner == "worker-2"


def test_what_ends_before_the_pause_is_noticed_counts(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "a")
    running = claimed(database)
    do(database, actions.pause, batch_id)
    assert answered(database, running) == {running[0].prompt_id}
    with writing(database) as conn:
        assert queue.finish_batches(conn) == [batch_id]


def test_resume_makes_it_claimable_and_forgets_old_bells(database: Engine) -> None:
    batch_id = submitted(database, "a", "b")
    with writing(database) as conn:
        queue.mark_rung(conn, queue.unrung(conn, PAIR, older_than=0))
    do(database, actions.pause, batch_id)

    assert do(database, actions.resume, batch_id)

    with reading(database) as conn:
        assert len(queue.unrung(conn, PAIR, older_than=3600)) == 2
    assert batch(database, batch_id).paused_at is None
    assert len(claimed(database)) == 2


@pytest.mark.parametrize(("first", "again"), [("pause", "pause"), (None, "resume")])
def test_pause_and_resume_again_change_nothing(database: Engine, first: str | None, again: str) -> None:
    batch_id = submitted(database, "a")
    if first:
        do(database, getattr(actions, first), batch_id)
    before = batch(database, batch_id)
    assert not do(database, getattr(actions, again), batch_id)
    assert batch(database, batch_id) == before


def test_a_batch_paused_while_it_is_submitted_waits_for_its_resume(database: Engine) -> None:
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
        batches.add_prompts(conn, batch_id, 0, [new_prompt("a")])
        actions.pause(conn, batch_id)
        batches.seal(conn, batch_id, [], 0)
    assert claimed(database) == []
    do(database, actions.resume, batch_id)
    assert len(claimed(database)) == 1


def test_a_paused_batch_can_be_cancelled_and_still_keeps_its_deadline(database: Engine) -> None:
    paused = submitted(database, "a")
    do(database, actions.pause, paused)
    cancelled(database, paused)
    assert batch(database, paused).status == BatchStatus.CANCELLED
    assert batch(database, paused).paused_at is None

    late = submitted(database, "b")
    do(database, actions.pause, late)
    with writing(database) as conn:
        conn.execute(update(Batch).where(Batch.id == late).values(deadline=now(conn) - timedelta(seconds=1)))
        reap(conn, LEASE_SECONDS)
    assert batch(database, late).status == BatchStatus.EXPIRED


# Priority


def test_a_priority_changed_while_queued_decides_the_next_claim(database: Engine) -> None:
    submitted(database, "first")
    raised = submitted(database, "second")
    with writing(database) as conn:
        assert actions.set_priority(conn, raised, 2)
        assert not actions.set_priority(conn, raised, 2)
    assert [prompt.custom_id for prompt in claimed(database)] == ["second", "first"]


# What is refused


@pytest.mark.parametrize("name", ["pause", "resume", "set_priority"])
@pytest.mark.parametrize("status", ["completed", "cancelled", "expired"])
def test_an_ended_batch_can_no_longer_be_changed(database: Engine, name: str, status: str) -> None:
    batch_id = submitted(database, "a")
    with writing(database) as conn:
        conn.execute(update(Batch).values(status=status))
    before = batch(database, batch_id)
    arguments = (2,) if name == "set_priority" else ()
    with pytest.raises(ActionRefused, match=f"is {status}: it can no longer be"), writing(database) as conn:
        getattr(actions, name)(conn, batch_id, *arguments)
    assert batch(database, batch_id) == before


@pytest.mark.parametrize("name", ["cancel", "pause", "resume"])
def test_an_unknown_batch_is_said_to_be_unknown(database: Engine, name: str) -> None:
    with pytest.raises(UnknownBatch):
        do(database, getattr(actions, name), "batch_missing")


def test_a_prompt_that_somebody_is_writing_is_left_for_the_next_look(
    postgres_url: str, request: pytest.FixtureRequest
) -> None:
    """On SQLite a second writer waits; on PostgreSQL waiting for rows could end in a deadlock."""
    from db import schema
    from db.connect import connect

    database = connect(postgres_url)
    request.addfinalizer(database.dispose)
    schema.upgrade(database)
    worker(database)
    batch_id = submitted(database, "held", "pending")
    [held] = claimed(database, limit=1)
    do(database, actions.cancel, batch_id)
    with writing(database) as holder:
        queue.complete(holder, "worker-1", [], [queue.Failed(held.lease, "bad", "no")])
        with writing(database) as conn:
            assert actions.cancel_prompts(conn, batch_id) == 1
            assert queue.finish_batches(conn) == []
    assert cancelled(database, batch_id) == 0
    assert status_of(database, batch_id) == {"held": "failed", "pending": "cancelled"}
    assert batch(database, batch_id).status == BatchStatus.CANCELLED


def test_nothing_of_a_cancelled_batch_is_left_for_a_claim_that_began_before(database: Engine) -> None:
    batch_id = submitted(database, "a")
    cancelled(database, batch_id)
    assert claimed(database) == []
    with reading(database) as conn:
        assert conn.execute(Prompt.__table__.select().where(Prompt.owner.is_not(None))).all() == []
