"""Reports, against numbers worked out by hand."""

import json
from dataclasses import asdict
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text, update

from db import batches, queue
from db.acceptance import acceptance_columns
from db.connect import reading, writing
from db.flags import MEANINGS, FlaggedGroup
from db.queue import Failed
from db.reports import DrafterTotals, FailedPrompt, FailureGroup, Percentiles, Reused, progress, report
from db.tables import Batch, QualityFlag
from tests.db.given import answered, claimed, new_batch, new_prompt, sample, submitted, worker


@pytest.fixture
def batch_id(database: Engine) -> str:
    """Six prompts: four answered by two workers with two drafters, one failed, one still pending."""
    batch_id = submitted(database, "a", "b", "c", "d", "e", "f")
    worker(database, "one", host="alpha")
    worker(database, "two", host="beta")
    a, b, c, d, e = claimed(database, limit=5)
    nothing = acceptance_columns(0, 0, 0, [])
    with writing(database) as conn:
        queue.complete(
            conn,
            "one",
            [
                queue.Success(a.lease, "", [sample(queue_seconds=1.0, total_seconds=2.0)]),
                queue.Success(
                    b.lease, "", [sample(queue_seconds=2.0, total_seconds=5.0, finish_reason="length")]
                ),
            ],
            [Failed(e.lease, "prompt_too_long", "too long")],
        )
        columns = {"num_spec_steps": 1, **acceptance_columns(2, 1, 1, [0, 1, 0])}
        queue.complete(
            conn,
            "two",
            [queue.Success(c.lease, "", [sample(queue_seconds=3.0, total_seconds=4.0, **columns)])],
            [],
        )
        columns = {"method": "none", "spec_disabled_reason": "asked for", "num_spec_steps": 0, **nothing}
        row = sample(queue_seconds=4.0, total_seconds=4.5, completion_tokens=3, cached_tokens=2, **columns)
        queue.complete(conn, "two", [queue.Success(d.lease, "", [row])], [])
    return batch_id


def test_progress_counts_prompts_and_sums_tokens(database: Engine, batch_id: str) -> None:
    with reading(database) as conn:
        so_far = progress(conn, batch_id)
    assert so_far.prompts == {
        "pending": 1, "running": 0, "succeeded": 4, "failed": 1, "cancelled": 0, "expired": 0,
    }  # fmt: skip
    assert (so_far.total, so_far.done, so_far.ended) == (6, 5, False)
    assert so_far.completion_tokens == 33
    assert (so_far.num_draft_tokens, so_far.num_accepted_draft_tokens, so_far.num_spec_steps) == (18, 13, 9)
    assert so_far.acceptance_length == 1 + 13 / 9
    assert so_far.elapsed_seconds >= 0


def test_progress_of_an_unsealed_batch_is_nothing_yet(database: Engine) -> None:
    with writing(database) as conn:
        so_far = progress(conn, batches.create(conn, new_batch()))
    assert (so_far.total, so_far.done, so_far.completion_tokens, so_far.elapsed_seconds) == (0, 0, 0, 0)
    assert so_far.acceptance_length is None


def test_totals(database: Engine, batch_id: str) -> None:
    with reading(database) as conn:
        result = report(conn, batch_id)
    assert (result.status, result.total_prompts, result.samples) == ("in_progress", 6, 4)
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (20, 33, 2)
    assert result.sampling == {"temperature": 0.5}
    assert result.ended_at is None
    assert result.finish_reasons == {"length": 1, "stop": 3}
    assert result.spec_disabled == {"asked for": 1}
    assert result.reused == Reused(prompts=0, samples=0, prompt_tokens=0, completion_tokens=0)


def test_rates_by_drafter_are_sums_over_sums(database: Engine, batch_id: str) -> None:
    with reading(database) as conn:
        drafters = report(conn, batch_id).drafters
    assert drafters == [
        DrafterTotals("none", 1, 3, 4, 0, None, None, None, None, garbled=False),
        DrafterTotals("prompt_lookup", 3, 30, 12, 9, 18, 13, 1 + 13 / 9, 13 / 18, garbled=False),
    ]


def test_a_drafting_model_that_is_never_right_is_told_of_though_no_row_tried_it_for_long(
    database: Engine,
) -> None:
    """The planner soon leaves it alone: row by row there is little to see."""
    batch_id = submitted(database, *(f"p{number}" for number in range(10)))
    worker(database)
    columns = {"method": "draft_model", "num_spec_steps": 2, **acceptance_columns(10, 0, 2, [2])}
    answered(database, claimed(database), **columns)
    with reading(database) as conn:
        (drafter,) = report(conn, batch_id).drafters
    assert drafter.garbled


def test_flagged_samples_are_counted_with_examples_and_what_the_flag_means(database: Engine) -> None:
    batch_id = submitted(database, *(f"p{number}" for number in range(6)))
    worker(database)
    prompts = claimed(database)
    answered(database, prompts[:5], quality_flag=QualityFlag.REPEATS)
    answered(database, prompts[5:], quality_flag=None)
    with reading(database) as conn:
        found = report(conn, batch_id).flagged
    assert found == [FlaggedGroup("repeats_itself", MEANINGS["repeats_itself"], 5, ["p0", "p1", "p2"])]


def test_times_are_exact_percentiles(database: Engine, batch_id: str) -> None:
    """Queue 1, 2, 3, 4 s; generation 1, 3, 1, 0.5 s: interpolated as PostgreSQL does."""
    with reading(database) as conn:
        result = report(conn, batch_id)
        if database.dialect.name == "postgresql":
            within = "WITHIN GROUP (ORDER BY total_seconds - queue_seconds)"
            exact = text(f"SELECT percentile_cont(ARRAY[0.5, 0.95, 0.99]) {within} FROM samples")
            assert Percentiles(*conn.execute(exact).scalar_one()) == pytest.approx(result.generation_seconds)
    assert result.queue_seconds is not None
    assert asdict(result.queue_seconds) == pytest.approx({"p50": 2.5, "p95": 3.85, "p99": 3.97})
    assert result.generation_seconds is not None
    assert asdict(result.generation_seconds) == pytest.approx({"p50": 1.0, "p95": 2.7, "p99": 2.94})
    assert result.first_token_seconds == Percentiles(0.2, 0.2, 0.2)


def test_failures_are_grouped_by_code_with_examples(database: Engine) -> None:
    batch_id = submitted(database, *(f"p{number}" for number in range(6)))
    prompts = claimed(database)
    with writing(database) as conn:
        failed = [
            Failed(prompt.lease, "too_long", f"{prompt.custom_id} is too long") for prompt in prompts[:5]
        ]
        queue.complete(conn, "worker-1", [], [*failed, Failed(prompts[5].lease, "bad_template", "no")])
        failures = report(conn, batch_id).failures
    assert failures == [
        FailureGroup(
            "too_long",
            5,
            [FailedPrompt(f"p{n}", "prompts.jsonl", 1, f"p{n} is too long") for n in range(3)],
        ),
        FailureGroup("bad_template", 1, [FailedPrompt("p5", "prompts.jsonl", 1, "no")]),
    ]


def test_the_slowest_are_those_that_generated_longest(database: Engine, batch_id: str) -> None:
    with reading(database) as conn:
        slowest = report(conn, batch_id).slowest
    assert [(prompt.custom_id, prompt.generation_seconds) for prompt in slowest] == [
        ("b", 3.0),
        ("a", 1.0),
        ("c", 1.0),
        ("d", 0.5),
    ]


def test_each_workers_share(database: Engine, batch_id: str) -> None:
    with reading(database) as conn:
        shares = report(conn, batch_id).workers
    assert [(share.host, share.prompts, share.samples, share.completion_tokens) for share in shares] == [
        ("alpha", 2, 2, 20),
        ("beta", 2, 2, 13),
    ]


def test_tokens_a_second_are_those_generated_between_sealing_and_the_end(database: Engine) -> None:
    batch_id = submitted(database, "a")
    worker(database)
    answered(database, claimed(database))
    with writing(database) as conn:
        queue.finish_batches(conn)
        ended_at = batches.get(conn, batch_id).completed_at
        assert ended_at is not None
        conn.execute(update(Batch).values(sealed_at=ended_at - timedelta(seconds=4)))
        result = report(conn, batch_id)
        so_far = progress(conn, batch_id)
    assert (result.status, result.wall_seconds, result.tokens_per_second) == ("completed", 4.0, 2.5)
    assert result.ended_at == ended_at.isoformat()
    assert so_far.ended
    assert so_far.elapsed_seconds == 4.0


def test_reused_samples_are_counted_apart(database: Engine, batch_id: str) -> None:
    with writing(database) as conn:
        again = batches.create(conn, new_batch())
        prompts = [new_prompt(name) for name in "abcdef"]
        assert batches.add_prompts(conn, again, 0, prompts, previous_batch=batch_id) == 4
        batches.seal(conn, again, [], 0)
        result = report(conn, again)
        assert progress(conn, again).completion_tokens == 0
        assert report(conn, batch_id).completion_tokens == 33  # still the first batch's
    assert result.reused == Reused(prompts=4, samples=4, prompt_tokens=20, completion_tokens=33)
    assert (result.prompts["succeeded"], result.prompts["pending"]) == (4, 2)
    assert (result.samples, result.completion_tokens, result.tokens_per_second) == (0, 0, None)
    assert (result.drafters, result.finish_reasons, result.queue_seconds) == ([], {}, None)


def test_a_report_is_json(database: Engine, batch_id: str) -> None:
    with reading(database) as conn:
        result = report(conn, batch_id)
    assert json.loads(json.dumps(asdict(result)))["drafters"][1]["acceptance_length"] == 1 + 13 / 9
