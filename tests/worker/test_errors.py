"""Which failures of a prompt are final, and which send it back."""

import pytest

from worker.claims import Retries
from worker.engine.types import Failure
from worker.errors import RETRY_LIMIT, is_retryable


@pytest.mark.parametrize(
    "code", ["prompt_too_long", "chat_template_error", "unsupported_option", "bad_token", "empty_prompt"]
)
def test_what_would_fail_again_is_final(code: str) -> None:
    assert not is_retryable(code, engine_says=True), "the table overrules the engine"


@pytest.mark.parametrize("code", ["out_of_memory", "device_lost", "internal_error"])
def test_what_is_the_hosts_fault_is_not(code: str) -> None:
    assert is_retryable(code, engine_says=False)


@pytest.mark.parametrize("engine_says", [True, False])
def test_the_engine_decides_for_a_code_that_the_table_does_not_know(engine_says: bool) -> None:
    assert is_retryable("something_new", engine_says) is engine_says


def test_retrying_ends() -> None:
    retries = Retries()
    failure = Failure((), 0, "out_of_memory", "full", retryable=True)
    assert [retries.again(1, failure) for _ in range(RETRY_LIMIT)] == [True] * (RETRY_LIMIT - 1) + [False]
    assert retries.again(2, failure), "each prompt has its own count"
