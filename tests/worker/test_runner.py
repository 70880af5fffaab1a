"""The seam between queue and engine, on real databases and with an engine that answers from a table."""

import pytest

from tests.worker.bench import Bench
from tests.worker.queued import submit, workers
from tests.worker.waiting import until
from worker.errors import RETRY_LIMIT
from worker.sampling import effective_seed


def test_one_bell_leads_to_the_whole_batch(bench: Bench) -> None:
    batch = submit(bench.db, [{}] * 30)
    bench.work()
    assert set(batch.statuses()) == {"succeeded"}
    assert [prompt.attempt for prompt in batch.prompts()] == [1] * 30
    assert [sample.text for sample in batch.samples()] == [
        f"answer to question {number}, sample 0" for number in range(30)
    ]
    assert batch.batch.status == "completed"
    assert bench.rung == 0, "no bell is rung for nothing"


def test_a_bell_for_nothing_ends_at_once_and_rings_no_other(bench: Bench) -> None:
    bench.runner.hear().wait()
    assert bench.rung == 0


def test_every_measurement_reaches_its_column(bench: Bench) -> None:
    batch = submit(bench.db, [{}])
    bench.work()
    (prompt,), (sample,) = batch.prompts(), batch.samples()
    assert prompt.rendered == "question 0"
    assert (sample.completion_tokens, sample.finish_reason, sample.worker_id) == (4, "stop", "worker_1")
    assert (sample.num_draft_tokens, sample.num_accepted_draft_tokens) == (4, 2)
    assert (sample.acceptance_histogram, sample.mean_acceptance_length) == ([0, 0, 1], 3.0)
    assert sample.draft_acceptance_rate == 0.5
    assert sample.queue_seconds > 0.25, "submitted until claimed, and the engine's own queue"
    assert sample.total_seconds == pytest.approx(sample.queue_seconds + 0.5 + 1.0)


def test_sampling_is_the_models_then_the_batchs_then_the_prompts(bench: Bench) -> None:
    batch = submit(bench.db, [{}, {"sampling": {"max_tokens": 3}}], sampling={"temperature": 0.0})
    bench.work()
    first, second = (request.sampling for _, request in bench.engine.seen)
    assert (first.temperature, first.top_p, first.max_tokens) == (0.0, 0.9, 64)
    assert (second.temperature, second.top_p, second.max_tokens) == (0.0, 0.9, 3)
    resolved = {"temperature": 0.0, "top_p": 0.9, "top_k": 0, "max_tokens": 64, "stop": []}
    assert batch.batch.sampling_resolved.items() >= resolved.items()


def test_the_seed_is_the_given_one_or_follows_from_batch_and_position(bench: Bench) -> None:
    batch = submit(bench.db, [{}, {"sampling": {"seed": 11}}, {}], seed=99)
    bench.work()
    seeds = [sample.seed for sample in batch.samples()]
    assert seeds == [effective_seed({}, 99, 0), 11, effective_seed({}, 99, 2)]
    assert [request.sampling.seed for _, request in bench.engine.seen] == seeds


def test_a_prompt_ends_when_all_its_samples_have(bench: Bench) -> None:
    batch = submit(bench.db, [{"n": 3}, {"n": 1}])
    bench.work()
    assert [(sample.custom_id, sample.sample_index) for sample in batch.samples()] == [
        ("p0", 0),
        ("p0", 1),
        ("p0", 2),
        ("p1", 0),
    ]
    assert len({sample.seed for sample in batch.samples()}) == 2, "samples of a prompt share its seed"


def test_a_claim_takes_rows_into_account(bench: Bench) -> None:
    """Room for 8 rows is room for two prompts of 4 samples, not for eight."""
    bench.engine.held = {f"question {number}" for number in range(40)}
    batch = submit(bench.db, [{"n": 4}] * 40)
    bench.runner.hear()
    until(lambda: len(bench.engine.seen) == 8, "the claim is in the engine")
    assert batch.statuses().count("running") == 2


def test_a_final_failure_fails_its_prompt_by_name_and_only_it(bench: Bench) -> None:
    bench.engine.failures["question 1"] = ("prompt_too_long", False)
    batch = submit(bench.db, [{}, {"n": 2}, {}])
    bench.work()
    assert batch.statuses() == ["succeeded", "failed", "succeeded"]
    failed = batch.prompts()[1]
    assert (failed.error_code, failed.error_message) == ("prompt_too_long", "question 1: prompt_too_long")
    assert [sample.custom_id for sample in batch.samples()] == ["p0", "p2"]
    assert batch.batch.status == "completed"
    assert bench.successes == 2, "what succeeded tells the fleet that this machine can serve"


def test_a_prompt_that_cannot_be_rendered_never_reaches_the_engine(bench: Bench) -> None:
    batch = submit(bench.db, [{"messages": [{"role": "wizard", "content": "hi"}]}, {"text": ""}, {}])
    bench.work()
    assert batch.statuses() == ["failed", "failed", "succeeded"]
    assert [prompt.error_code for prompt in batch.prompts()] == ["chat_template_error", "empty_prompt", None]
    assert "wizard" in batch.prompts()[0].error_message
    assert len(bench.engine.seen) == 1


def test_an_option_from_a_newer_producer_fails_the_prompt_by_name(bench: Bench) -> None:
    batch = submit(bench.db, [{"sampling": {"telepathy": 0.1}}])
    bench.work()
    assert batch.prompts()[0].error_code == "unsupported_option"


def test_a_retryable_failure_sends_the_prompt_back_until_retrying_is_hopeless(bench: Bench) -> None:
    bench.engine.failures["question 0"] = ("out_of_memory", True)
    batch = submit(bench.db, [{}])
    bench.work()
    assert len(bench.engine.seen) == RETRY_LIMIT
    (prompt,) = batch.prompts()
    assert (prompt.status, prompt.error_code, prompt.crashes) == ("failed", "out_of_memory", 0)


def test_a_lost_lease_evicts_the_row_and_drops_its_output(bench: Bench) -> None:
    bench.engine.held = {"question 0"}
    batch = submit(bench.db, [{}])
    bell = bench.runner.hear()
    until(lambda: bench.engine.seen, "the prompt is in the engine")
    batch.take_away("p0")
    bell.wait()  # the next renewal finds out
    until(lambda: bench.engine.cancelled, "the row is evicted")
    assert batch.statuses() == ["pending"]
    assert batch.samples() == []


def test_a_lease_lost_at_the_last_moment_writes_nothing(bench: Bench) -> None:
    """The output is there before any renewal says that the lease is gone: the fence must hold it back."""
    bench.engine.held = {"question 0"}
    batch = submit(bench.db, [{}])
    bell = bench.runner.hear()
    until(lambda: bench.engine.seen, "the prompt is in the engine")
    batch.take_away("p0")
    bench.engine.held.clear()
    bell.wait()
    assert batch.samples() == []
    assert batch.statuses() == ["pending"]


def test_leases_are_renewed_while_a_prompt_runs(bench: Bench) -> None:
    bench.engine.held = {"question 0"}
    batch = submit(bench.db, [{}])
    bench.runner.hear()
    until(lambda: bench.engine.seen, "the prompt is in the engine")
    first = batch.prompts()[0].lease_until
    until(lambda: batch.prompts()[0].lease_until > first, "the lease is renewed")


def test_the_worker_says_that_it_is_alive_and_what_it_does(bench: Bench) -> None:
    bench.engine.held = {"question 0"}
    submit(bench.db, [{}])
    bench.runner.hear()
    until(lambda: workers(bench.db)[0].activity.get("rows_in_flight") == 1, "the heartbeat tells of the row")
    assert workers(bench.db)[0].state == "ready"
    assert workers(bench.db)[0].activity["claimed"] == 1


def test_long_prompts_do_not_keep_every_slot(bench: Bench) -> None:
    """Two slots, each held by a claim with one prompt that does not end: a third bell must still be heard."""
    bench.engine.held = {"question 0", "question 1"}
    batch = submit(bench.db, [{}, {}])
    slots = [bench.runner.hear() for _ in range(2)]
    until(lambda: len(bench.engine.seen) == 2, "both are in the engine")
    until(lambda: any(bell.has_ended for bell in slots), "a slot is freed")
    assert batch.statuses() == ["running", "running"], "its prompt goes on running"


def test_drain_finishes_what_is_held_and_claims_no_more(bench: Bench) -> None:
    bench.engine.held = {"question 0"}
    batch = submit(bench.db, [{}] + [{}] * 20)
    bench.runner.hear()
    until(lambda: bench.engine.seen, "the claim is in the engine")
    bench.runner.drain(grace=60)
    until(lambda: workers(bench.db)[0].state == "draining", "the worker says so")
    bench.runner.hear().wait()
    bench.engine.held.clear()
    assert bench.runner.join(30)
    assert workers(bench.db)[0].state == "stopped"
    assert batch.prompts()[0].status == "succeeded"
    assert "pending" in batch.statuses()
    assert "running" not in batch.statuses()


def test_a_drain_returns_at_once_what_has_no_row_yet(bench: Bench) -> None:
    """Four rows, eight prompts held: the four that wait in the engine are for others to begin."""
    bench.engine.held = {f"question {n}" for n in range(20)}
    batch = submit(bench.db, [{}] * 20)
    for _ in range(2):
        bench.runner.hear()
    until(lambda: batch.statuses().count("running") == 8, "rows and a refill are claimed")
    bench.runner.drain(grace=60)
    until(lambda: batch.statuses().count("running") == 4, "the refill is returned")
    assert batch.statuses()[:4] == ["running"] * 4
    assert all(prompt.crashes == 0 for prompt in batch.prompts())
    bench.engine.held.clear()
    assert bench.runner.join(30)
    assert batch.statuses().count("succeeded") == 4


def test_when_the_grace_ends_the_rest_is_released(bench: Bench) -> None:
    bench.engine.held = {"question 0"}
    batch = submit(bench.db, [{}])
    bell = bench.runner.hear()
    until(lambda: bench.engine.seen, "the prompt is in the engine")
    bench.runner.drain(grace=0.1)
    assert bench.runner.join(30)
    bell.wait()
    (prompt,) = batch.prompts()
    assert (prompt.status, prompt.attempt, prompt.crashes, prompt.owner) == ("pending", 2, 0, None)
    assert bench.rung == 1, "others hear that there is work again"


def test_a_bell_after_the_end_does_not_hang_its_task(bench: Bench) -> None:
    bench.close()
    bench.runner.hear().wait()


def test_an_engine_that_dies_ends_the_runner_and_counts_as_a_crash(bench: Bench) -> None:
    bench.engine.deaths = {"question 0"}
    batch = submit(bench.db, [{}])
    bench.runner.hear().wait()
    until(lambda: bench.death, "the process hears of it")
    assert "device-side assert" in str(bench.death)
    assert batch.statuses() == ["running"], "not released: the reaper counts the crash when the lease ends"


def test_a_prompt_that_the_device_did_not_survive_ends_the_runner(bench: Bench) -> None:
    """The engine reports one row, but every later step of the process would fail as that one did."""
    bench.engine.failures["question 0"] = ("internal_error: CUDA error: device-side assert triggered", True)
    batch = submit(bench.db, [{}])
    bench.runner.hear().wait()
    until(lambda: bench.death, "the process hears of it")
    assert batch.statuses() == ["running"]


def test_what_there_is_no_memory_for_goes_back_at_no_cost(bench: Bench) -> None:
    bench.engine.held = {f"question {number}" for number in range(8)}
    batch = submit(bench.db, [{}] * 16)
    bench.runner.hear()
    until(lambda: batch.statuses().count("running") == 8, "four rows run, and as many wait in the engine")
    bench.engine.max_rows = 1
    bench.engine.held.remove("question 0")
    until(lambda: batch.statuses().count("running") == 2, "the last claimed are given back")
    assert batch.statuses()[:4] == ["succeeded", "running", "running", "pending"]
    assert {prompt.crashes for prompt in batch.prompts()} == {0}
    bench.engine.max_rows = 4
    bench.engine.held.clear()
    bench.work()
    assert set(batch.statuses()) == {"succeeded"}


def test_a_prompt_of_many_samples_is_not_given_back_for_ever(bench: Bench) -> None:
    bench.engine.max_rows = 1
    batch = submit(bench.db, [{"n": 7}])
    bench.work()
    assert batch.statuses() == ["succeeded"]
    assert batch.prompts()[0].attempt == 1


def test_more_samples_than_were_foreseen_are_not_given_back(bench: Bench) -> None:
    """A claim is sized by its first prompt's n."""
    batch = submit(bench.db, [{}, *[{"n": 5}] * 15])
    bench.work()
    assert {prompt.attempt for prompt in batch.prompts()} == {1}
