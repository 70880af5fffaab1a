"""A prompt that was there at two deaths runs alone, so that the third can be laid at its own door."""

from sqlalchemy import Engine

from db import actions, queue
from db.connect import reading, writing
from db.queue import Claimed
from db.reaping import POISON
from db.tables import CRASH_LIMIT
from tests.db.given import PAIR, claimed, prompt_row, submitted
from tests.db.test_reaping import let_leases_end, pass_by


def suspect(database: Engine) -> Claimed | None:
    with writing(database) as conn:
        return queue.claim_suspect(conn, PAIR, "worker-1", 60)


def suspects_wait(database: Engine) -> bool:
    with reading(database) as conn:
        return queue.suspects_wait(conn, PAIR)


def die_with_all(database: Engine, times: int) -> None:
    for _ in range(times):
        assert claimed(database)
        let_leases_end(database)
        pass_by(database)


def test_after_the_first_death_a_prompt_is_claimed_with_others(database: Engine) -> None:
    submitted(database, "a", "b")
    die_with_all(database, 1)
    assert not suspects_wait(database)
    assert [prompt.custom_id for prompt in claimed(database)] == ["a", "b"]


def test_after_the_second_it_is_claimed_alone(database: Engine) -> None:
    submitted(database, "a", "b")
    die_with_all(database, 2)
    submitted(database, "c")

    assert suspects_wait(database)
    assert [prompt.custom_id for prompt in claimed(database)] == ["c"], "a claim passes suspects by"
    first, second = suspect(database), suspect(database)
    assert first is not None
    assert second is not None
    assert (first.custom_id, first.attempt, first.crashes, first.is_suspect) == ("a", 5, 2, True)
    assert second.custom_id == "b"
    assert not suspects_wait(database)
    assert suspect(database) is None


def test_only_the_prompt_that_kills_by_itself_is_poison(database: Engine) -> None:
    submitted(database, "innocent", "poison", "bystander")
    die_with_all(database, CRASH_LIMIT - 1)
    while prompt := suspect(database):
        if prompt.custom_id != "poison":
            with writing(database) as conn:
                queue.complete(conn, "worker-1", [], [queue.Failed(prompt.lease, "done", "in a test")])
    let_leases_end(database)
    assert pass_by(database).poisoned == 1
    assert prompt_row(database, "poison").error_code == POISON
    assert prompt_row(database, "innocent").error_code == "done"
    assert prompt_row(database, "bystander").error_code == "done"


def test_a_suspect_of_a_batch_that_is_held_up_waits(database: Engine) -> None:
    batch_id = submitted(database, "a")
    die_with_all(database, 2)
    with writing(database) as conn:
        actions.pause(conn, batch_id)
    assert not suspects_wait(database)
    assert suspect(database) is None


def test_a_suspect_that_is_given_back_stays_one(database: Engine) -> None:
    submitted(database, "a")
    die_with_all(database, 2)
    prompt = suspect(database)
    assert prompt is not None
    with writing(database) as conn:
        queue.release(conn, "worker-1", [prompt.lease])
    assert claimed(database) == []
    assert suspects_wait(database)
