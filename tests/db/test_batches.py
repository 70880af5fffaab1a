"""Submission: batches are written once, found again, and reuse what earlier ones have answered."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import IntegrityError

from db import batches, queue
from db.batches import Match
from db.clock import now
from db.connect import reading, writing
from db.errors import BatchInUse, UnknownBatch
from db.queue import Failed
from db.results import find_prompt
from db.tables import BatchStatus, Prompt, Sample
from tests.db.given import answered, claimed, new_batch, new_prompt, prompt_row, statuses, submitted, worker


def test_a_batch_is_stored_as_submitted(database: Engine) -> None:
    deadline = datetime(2040, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    with writing(database) as conn:
        batch_id = batches.create(
            conn,
            new_batch(
                name="nightly", sampling={"top_k": 3}, metadata={"for": "me"}, priority=2, deadline=deadline
            ),
        )
        batch = batches.get(conn, batch_id)
    assert (batch.name, batch.sampling, batch.metadata) == ("nightly", {"top_k": 3}, {"for": "me"})
    assert (batch.priority, batch.deadline, batch.seed) == (2, deadline, 7)
    assert (batch.status, batch.sealed_at, batch.sampling_resolved) == (BatchStatus.VALIDATING, None, None)


def test_ids_increase_with_time(database: Engine) -> None:
    ids: list[str] = []
    for _ in range(3):
        with writing(database) as conn:
            ids.append(batches.create(conn, new_batch()))
            before = now(conn)
            while now(conn) - before < timedelta(milliseconds=2):
                pass
    assert ids == sorted(ids)
    assert all(len(batch_id) == len("batch_") + 24 for batch_id in ids)


def test_a_completion_window_sets_the_deadline(database: Engine) -> None:
    with writing(database) as conn:
        batch = batches.get(conn, batches.create(conn, new_batch(completion_window=timedelta(hours=24))))
    assert batch.deadline is not None
    assert batch.deadline - batch.created_at == timedelta(hours=24)


def test_sealing_opens_a_batch_and_keeps_its_input_errors(database: Engine) -> None:
    errors = [{"path": "a.jsonl", "line": 3, "message": "not JSON"}]
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
        batches.add_prompts(conn, batch_id, 0, [new_prompt("a")])
        batches.seal(conn, batch_id, errors, 12)
        batch = batches.get(conn, batch_id)
    assert (batch.status, batch.input_errors, batch.num_input_errors) == ("in_progress", errors, 12)
    assert batch.sealed_at == batch.in_progress_at is not None


def test_prompts_keep_their_order_and_origin_over_several_calls(database: Engine) -> None:
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
        batches.add_prompts(
            conn, batch_id, 0, [new_prompt("z", source_line=10), new_prompt("y", source_line=11)]
        )
        batches.add_prompts(conn, batch_id, 2, [new_prompt("x", source_path="b.txt", source_line=None)])
        assert batches.add_prompts(conn, batch_id, 3, []) == 0
        assert list(statuses(conn, batch_id)) == ["z", "y", "x"]
        assert batches.first_location(conn, batch_id, "y") == ("prompts.jsonl", 11)
        assert batches.first_location(conn, batch_id, "x") == ("b.txt", None)
        assert batches.first_location(conn, batch_id, "w") is None


def test_a_custom_id_is_there_once_in_a_batch(database: Engine) -> None:
    submitted(database, "a")
    submitted(database, "a")
    with pytest.raises(IntegrityError):
        submitted(database, "a", "a")


def test_what_an_earlier_batch_answered_succeeds_at_once(database: Engine) -> None:
    """Unchanged and succeeded: reused. Changed, failed or new: to be run."""
    worker(database)
    first = submitted(database, "same", "changed", "failed")
    same, changed, failed = claimed(database)
    answered(database, [same, changed])
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(failed.lease, "bad", "no")])
        second = batches.create(conn, new_batch())
        prompts = [
            new_prompt("same"),
            new_prompt("changed", content_key="another"),
            new_prompt("failed"),
            new_prompt("new"),
        ]
        assert batches.add_prompts(conn, second, 0, prompts, previous_batch=first) == 1
        batches.seal(conn, second, [], 0)

        assert statuses(conn, second) == {
            "same": "succeeded",
            "changed": "pending",
            "failed": "pending",
            "new": "pending",
        }
        reused = find_prompt(conn, second, "same")
    assert reused is not None
    assert reused.reused_from == same.prompt_id
    assert reused.ended_at is not None
    assert [sample.text for sample in reused.samples] == ["an answer"]
    assert reused.rendered == "<user>Say it."


def test_reuse_of_a_reuse_leads_to_the_prompt_that_has_the_samples(database: Engine) -> None:
    worker(database)
    previous = submitted(database, "a")
    [prompt] = claimed(database)
    answered(database, [prompt])
    for _ in range(2):
        with writing(database) as conn:
            batch_id = batches.create(conn, new_batch())
            batches.add_prompts(conn, batch_id, 0, [new_prompt("a")], previous_batch=previous)
            batches.seal(conn, batch_id, [], 0)
            row = find_prompt(conn, batch_id, "a")
            assert row is not None
            assert row.reused_from == prompt.prompt_id
            assert batches.get(conn, batch_id).status == BatchStatus.COMPLETED  # nothing was left to do
        previous = batch_id


def test_matching_says_what_a_batch_knows_under_a_custom_id(database: Engine) -> None:
    batch_id = submitted(database, "a", "b")
    a, b = prompt_row(database, "a").id, prompt_row(database, "b").id
    many = [(f"absent-{number}", "key") for number in range(2 * batches.CHUNK)]
    with reading(database) as conn:
        found = batches.match_prompts(
            conn, batch_id, [("a", "content of a"), *many, ("b", "changed since"), ("c", "content of c")]
        )
    assert found == {"a": Match(a, "pending", True), "b": Match(b, "pending", False)}


def test_the_latest_batch_of_a_source_is_found(database: Engine) -> None:
    submitted(database, source_key="here")
    latest = submitted(database, source_key="here")
    other = submitted(database, source_key="there")
    with reading(database) as conn:
        found = batches.find_latest(conn, "here")
        assert found is not None
        assert found.id == latest
        assert batches.find_latest(conn, "nowhere") is None
        assert [batch.id for batch in batches.list_recent(conn, 2)] == [other, latest]


def test_a_batch_goes_by_its_id_name_or_the_beginning_of_its_id(database: Engine) -> None:
    submitted(database, name="nightly")
    nightly = submitted(database, name="nightly")
    other = submitted(database, name="batch_of_mine")
    with reading(database) as conn:
        for reference in (nightly, "nightly", nightly[:-3], nightly[len("batch_") : -3]):
            assert batches.get(conn, reference).id == nightly  # of one name, the newest
        assert batches.get(conn, "batch_of_mine").id == other


@pytest.mark.parametrize("reference", ["nonsense", "", "%", "batch%"])
def test_an_unknown_batch_is_refused_with_the_recent_ones(database: Engine, reference: str) -> None:
    batch_id = submitted(database, name="nightly")
    with reading(database) as conn, pytest.raises(UnknownBatch) as refused:
        batches.get(conn, reference)
    assert f"No batch has the id, name or id prefix {reference!r}" in str(refused.value)
    assert f"{batch_id}  nightly  completed" in str(refused.value)


def test_a_prefix_of_several_batches_is_refused_with_them(database: Engine) -> None:
    ids = [submitted(database), submitted(database)]
    with reading(database) as conn, pytest.raises(UnknownBatch) as refused:
        batches.get(conn, "batch_0")
    assert "begins the ids of several batches" in str(refused.value)
    assert all(batch_id in str(refused.value) for batch_id in ids)


def test_without_any_batch_the_way_to_one_is_named(database: Engine) -> None:
    with reading(database) as conn, pytest.raises(UnknownBatch, match="producer submit"):
        batches.get(conn, "nightly")


def test_a_batch_is_deleted_with_all_that_is_its(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "a")
    kept = submitted(database, "b")
    answered(database, claimed(database, limit=1))
    with writing(database) as conn:
        batches.delete(conn, batch_id)
        assert [batch.id for batch in batches.list_recent(conn, 5)] == [kept]
        for table, count in ((Prompt, 1), (Sample, 0)):
            assert conn.execute(select(func.count()).select_from(table)).scalar_one() == count


def test_a_batch_whose_results_others_reuse_is_not_deleted(database: Engine) -> None:
    worker(database)
    first = submitted(database, "a")
    answered(database, claimed(database))
    with writing(database) as conn:
        second = batches.create(conn, new_batch())
        batches.add_prompts(conn, second, 0, [new_prompt("a")], previous_batch=first)
        with pytest.raises(BatchInUse, match=f"{first} cannot be deleted: {second} reuses its results"):
            batches.delete(conn, first)
        batches.delete(conn, second)
        batches.delete(conn, first)
        assert batches.list_recent(conn, 5) == []
