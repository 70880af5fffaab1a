"""Deleting old batches, and what is kept although it is old."""

from datetime import timedelta

from sqlalchemy import Engine, func, select, update

from db import batches, pruning, queue
from db.clock import now
from db.connect import reading, writing
from db.pruning import Old
from db.reports import report
from db.retrying import retry
from db.tables import Batch, Prompt, Sample
from tests.db.given import answered, claimed, new_batch, new_prompt, statuses, submitted, worker

MONTH = timedelta(days=30)


def finished(database: Engine, *names: str, age: timedelta = timedelta(days=40), **changes: object) -> str:
    """A batch that ended so long ago."""
    batch_id = submitted(database, *names, **changes)
    answered(database, claimed(database, limit=10_000))
    aged(database, batch_id, age)
    return batch_id


def aged(database: Engine, batch_id: str, age: timedelta) -> None:
    with writing(database) as conn:
        queue.finish_batches(conn)
        time = now(conn) - age
        conn.execute(update(Batch).where(Batch.id == batch_id).values(completed_at=time, created_at=time))


def reusing(database: Engine, previous: str, *names: str, age: timedelta) -> str:
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
        prompts = [new_prompt(name) for name in names]
        assert batches.add_prompts(conn, batch_id, 0, prompts, previous) == len(names)
        batches.seal(conn, batch_id, [], 0)
    aged(database, batch_id, age)
    return batch_id


def old(database: Engine, keep_latest: bool = False) -> list[Old]:
    with reading(database) as conn:
        return pruning.old_batches(conn, MONTH, keep_latest)


def pruned(database: Engine, batch_id: str) -> bool:
    """Whether the batch is gone."""
    more = True
    while more:
        with writing(database) as conn:
            more = pruning.delete_some(conn, batch_id)
    with reading(database) as conn:
        return not pruning.exists(conn, batch_id)


def counts(database: Engine) -> tuple[int, ...]:
    with reading(database) as conn:
        return tuple(
            conn.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (Batch, Prompt, Sample)
        )


def test_an_old_batch_goes_with_prompts_and_samples_whatever_their_number(database: Engine) -> None:
    worker(database)
    names = [f"p{number}" for number in range(2 * pruning.CHUNK)]
    batch_id = finished(database, *names)
    young = finished(database, "young", age=timedelta(days=29))

    assert old(database) == [Old(batch_id, None, len(names), (), False)]
    assert pruned(database, batch_id)

    assert counts(database) == (1, 1, 1)
    with reading(database) as conn:
        assert statuses(conn, young) == {"young": "succeeded"}
    assert old(database) == []


def test_an_unended_batch_is_never_old(database: Engine) -> None:
    batch_id = submitted(database, "a")
    with writing(database) as conn:
        conn.execute(update(Batch).values(created_at=now(conn) - timedelta(days=400)))
    assert old(database) == []
    assert not pruned(database, batch_id)
    assert counts(database)[:2] == (1, 1)


def test_results_that_a_batch_which_stays_reuses_are_kept_and_it_is_named(database: Engine) -> None:
    worker(database)
    root = finished(database, "a")
    young = reusing(database, root, "a", age=timedelta(days=1))

    [kept] = old(database)

    assert (kept.id, kept.reused_by, kept.may_go) == (root, (young,), False)
    assert not pruned(database, root), "and it is looked at again when it is to go"
    with reading(database) as conn:
        assert report(conn, young).reused.samples == 1


def test_a_batch_goes_with_those_that_reuse_it_they_first(database: Engine) -> None:
    worker(database)
    root = finished(database, "a", age=timedelta(days=50))
    user = reusing(database, root, "a", age=timedelta(days=45))
    last = reusing(database, user, "a", age=timedelta(days=40))

    assert [(one.id, one.may_go) for one in old(database)] == [(last, True), (user, True), (root, True)]
    assert all(pruned(database, one.id) for one in old(database))
    assert counts(database) == (0, 0, 0)


def test_the_latest_of_each_source_can_be_kept_and_then_keeps_what_it_reuses(database: Engine) -> None:
    worker(database)
    root = finished(database, "a", age=timedelta(days=50))
    middle = finished(database, "b", age=timedelta(days=45))
    last = reusing(database, root, "a", age=timedelta(days=40))
    other = finished(database, "c", source_key="another source")

    found = {one.id: one for one in old(database, keep_latest=True)}

    assert found[last].is_latest
    assert found[other].is_latest
    assert found[root].reused_by == (last,)
    assert [one.id for one in found.values() if one.may_go] == [middle]


def test_a_batch_retried_meanwhile_is_left(database: Engine) -> None:
    worker(database)
    batch_id = finished(database, "a")
    with writing(database) as conn:
        conn.execute(update(Prompt).values(status="failed"))
        retry(conn, batch_id)
    assert not pruned(database, batch_id)
    assert counts(database)[:2] == (1, 1)


def test_pruning_what_is_gone_is_no_error(database: Engine) -> None:
    assert pruned(database, "batch_gone")
