"""The queue's transitions, one by one: queue.md's table is the specification."""

import pytest
from sqlalchemy import Engine, func, select

from db import batches, queue
from db.connect import reading, writing
from db.queue import Failed, Lease, Success
from db.tables import PromptStatus, Sample
from tests.db.given import (
    LEASE_SECONDS,
    PAIR,
    answered,
    claimed,
    new_batch,
    new_prompt,
    prompt_row,
    sample,
    submitted,
    success,
    worker,
)


def count_samples(database: Engine) -> int:
    with reading(database) as conn:
        return conn.execute(select(func.count()).select_from(Sample)).scalar_one()


def test_a_new_prompt_is_pending_and_becomes_claimable_when_its_batch_is_sealed(database: Engine) -> None:
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
        batches.add_prompts(conn, batch_id, 0, [new_prompt("a")])
    assert prompt_row(database, "a").status == PromptStatus.PENDING
    assert claimed(database) == []

    with writing(database) as conn:
        batches.seal(conn, batch_id, [], 0)

    assert [prompt.custom_id for prompt in claimed(database)] == ["a"]


def test_a_claim_makes_a_prompt_running_with_an_owner_a_lease_and_the_next_attempt(database: Engine) -> None:
    batch_id = submitted(database, "a")

    [prompt] = claimed(database, owner="worker-1")

    row = prompt_row(database, "a")
    assert (row.status, row.owner, row.attempt, row.crashes) == (PromptStatus.RUNNING, "worker-1", 1, 0)
    assert (row.lease_until - row.claimed_at).total_seconds() == LEASE_SECONDS
    assert (prompt.prompt_id, prompt.attempt, prompt.batch_id) == (row.id, 1, batch_id)
    assert (prompt.text, prompt.messages, prompt.n, prompt.batch_seed) == ("Say a.", None, 1, 7)
    assert prompt.batch_sampling == {"temperature": 0.5}
    assert prompt.waited_seconds >= 0
    assert claimed(database, owner="worker-2") == []


def test_a_claim_hands_over_messages_and_options_as_they_were_given(database: Engine) -> None:
    messages = [{"role": "user", "content": "Grüße, 世界", "a": 1}]
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch())
        prompt = new_prompt(
            "a", messages=messages, text=None, sampling={"top_k": 4}, chat_template_kwargs={"zz": 1, "b": 2}
        )
        batches.add_prompts(conn, batch_id, 0, [prompt])
        batches.seal(conn, batch_id, [], 0)
        queue.resolve_sampling(conn, batch_id, {"temperature": 0.5, "top_p": 0.9})
        queue.resolve_sampling(conn, batch_id, {"temperature": 0.5, "top_p": 0.1})

    [got] = claimed(database)

    assert got.messages == messages
    assert got.chat_template_kwargs is not None
    assert list(got.messages[0]) == ["role", "content", "a"]
    assert list(got.chat_template_kwargs) == ["zz", "b"]  # a template may show the keys in their order
    assert got.sampling == {"top_k": 4}
    assert got.batch_sampling == {"temperature": 0.5, "top_p": 0.9}  # the first to resolve it decides


def test_a_completion_stores_the_samples_and_ends_the_prompt(database: Engine) -> None:
    submitted(database, "a", n=2)
    worker(database)
    [prompt] = claimed(database)

    with writing(database) as conn:
        two = [sample(), sample(sample_index=1, text="another")]
        accepted = queue.complete(conn, "worker-1", [Success(prompt.lease, "as seen", two)], [])

    assert accepted == {prompt.prompt_id}
    row = prompt_row(database, "a")
    assert (row.status, row.owner, row.lease_until) == (PromptStatus.SUCCEEDED, None, None)
    assert row.rendered == "as seen"
    assert row.ended_at >= row.claimed_at
    with reading(database) as conn:
        stored = conn.execute(select(Sample).order_by(Sample.sample_index)).all()
    assert [(s.prompt_id, s.sample_index, s.text) for s in stored] == [
        (row.id, 0, "an answer"),
        (row.id, 1, "another"),
    ]
    assert {(s.attempt, s.worker_id) for s in stored} == {(1, "worker-1")}
    assert stored[0].acceptance_histogram == [0, 2, 2]


def test_a_final_error_fails_the_prompt_with_its_code_and_message(database: Engine) -> None:
    submitted(database, "a")
    [prompt] = claimed(database)

    with writing(database) as conn:
        failed = Failed(prompt.lease, "prompt_too_long", "9,000 tokens, 2,048 fit")
        assert queue.complete(conn, "worker-1", [], [failed]) == {prompt.prompt_id}

    row = prompt_row(database, "a")
    assert (row.status, row.error_code) == (PromptStatus.FAILED, "prompt_too_long")
    assert row.error_message == "9,000 tokens, 2,048 fit"
    assert row.ended_at is not None


def test_a_second_completion_of_the_same_claim_changes_nothing(database: Engine) -> None:
    submitted(database, "a")
    worker(database)
    prompts = claimed(database)
    assert answered(database, prompts, text="first") == {prompts[0].prompt_id}

    assert answered(database, prompts, text="second") == set()

    assert count_samples(database) == 1


def test_a_completion_in_a_group_ends_those_still_held_and_no_others(database: Engine) -> None:
    submitted(database, "a", "b", "c")
    worker(database)
    a, b, c = claimed(database)
    with writing(database) as conn:
        queue.release(conn, "worker-1", [b.lease])
        accepted = queue.complete(
            conn, "worker-1", [success(a.lease), success(b.lease)], [Failed(c.lease, "bad", "no")]
        )

    assert accepted == {a.prompt_id, c.prompt_id}
    assert prompt_row(database, "b").status == PromptStatus.PENDING
    assert count_samples(database) == 1


def test_as_many_samples_as_wanted_or_none_are_stored(database: Engine) -> None:
    submitted(database, "a", n=2)
    worker(database)
    [prompt] = claimed(database)

    with pytest.raises(ValueError, match="wants 2 samples, not 1"):
        answered(database, [prompt])

    assert prompt_row(database, "a").status == PromptStatus.RUNNING
    assert count_samples(database) == 0


def test_text_that_no_database_can_hold_is_stored_with_replacement_characters(database: Engine) -> None:
    submitted(database, "a")
    worker(database)

    answered(database, claimed(database), text="nul \x00, half a pair \ud83d, whole 😀")

    with reading(database) as conn:
        text = conn.execute(select(Sample.text)).scalar_one()
    assert text == "nul \ufffd, half a pair \ufffd, whole 😀"


def test_a_release_returns_a_prompt_at_no_cost_and_voids_the_lease(database: Engine) -> None:
    submitted(database, "a")
    worker(database)
    [prompt] = claimed(database)
    with writing(database) as conn:
        queue.mark_rung(conn, [prompt.prompt_id])
        assert queue.release(conn, "worker-1", [prompt.lease]) == 1
        assert queue.release(conn, "worker-1", [prompt.lease]) == 0

    row = prompt_row(database, "a")
    assert (row.status, row.attempt, row.crashes) == (PromptStatus.PENDING, 2, 0)
    assert (row.owner, row.lease_until, row.claimed_at, row.rung_at) == (None, None, None, None)
    assert answered(database, [prompt]) == set()
    [again] = claimed(database)
    assert again.attempt == 3


def test_a_renewal_prolongs_what_is_held_and_names_it(database: Engine) -> None:
    submitted(database, "a", "b")
    a, b = claimed(database)
    before = prompt_row(database, "a").lease_until
    with writing(database) as conn:
        queue.release(conn, "worker-1", [b.lease])
        kept = queue.renew(conn, "worker-1", [a.lease, b.lease], 600)

    assert kept == {a.lease}
    assert prompt_row(database, "a").lease_until > before
    assert prompt_row(database, "b").lease_until is None


def test_nobody_renews_or_releases_for_another_worker(database: Engine) -> None:
    submitted(database, "a")
    [prompt] = claimed(database, owner="worker-1")
    with writing(database) as conn:
        assert queue.renew(conn, "worker-2", [prompt.lease], 600) == set()
        assert queue.release(conn, "worker-2", [prompt.lease]) == 0


def test_a_lease_names_an_attempt_not_just_a_prompt(database: Engine) -> None:
    submitted(database, "a")
    worker(database)
    [prompt] = claimed(database)
    wrong = Lease(prompt.prompt_id, prompt.attempt + 1)
    with writing(database) as conn:
        assert queue.renew(conn, "worker-1", [wrong], 600) == set()
        assert queue.complete(conn, "worker-1", [success(wrong)], []) == set()


def test_more_prompts_than_one_statement_holds(database: Engine) -> None:
    count = 2 * queue.CHUNK + 1
    submitted(database, *(f"p{number}" for number in range(count)))
    worker(database)
    prompts = claimed(database, limit=count)
    assert [prompt.position for prompt in prompts] == list(range(count))
    with writing(database) as conn:
        assert len(queue.renew(conn, "worker-1", [prompt.lease for prompt in prompts], 600)) == count
    assert len(answered(database, prompts)) == count
    assert count_samples(database) == count


def test_a_bell_not_rung_lately_is_missing(database: Engine) -> None:
    submitted(database, "a", "b", "c")
    rung, unrung, running = (prompt_row(database, name).id for name in ("b", "c", "a"))
    claimed(database, limit=1)
    with writing(database) as conn:
        assert queue.unrung(conn, PAIR, older_than=60) == [rung, unrung]
        queue.mark_rung(conn, [rung, running])
        assert queue.unrung(conn, PAIR, older_than=60) == [unrung]
        assert queue.unrung(conn, PAIR, older_than=-1) == [rung, unrung]
        assert queue.unrung(conn, PAIR, older_than=-1, limit=1) == [rung]
    assert prompt_row(database, "a").rung_at is None  # it runs: it needs no bell
