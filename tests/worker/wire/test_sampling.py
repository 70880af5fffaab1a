"""Sampling options as people write them."""

from typing import Any

import pytest
from pydantic import ValidationError

from worker.wire.sampling import MAX_SEED, SamplingOptions


def given(**options: Any) -> dict[str, Any]:
    return SamplingOptions.model_validate(options).given()


def test_only_what_was_given_is_given() -> None:
    assert given() == {}
    assert given(temperature=0, seed=MAX_SEED) == {"temperature": 0, "seed": MAX_SEED}


def test_null_is_not_given() -> None:
    assert given(temperature=None, max_tokens=None, stop=None) == {}


def test_openais_newer_name_for_max_tokens_is_understood() -> None:
    assert given(max_completion_tokens=7) == {"max_tokens": 7}


def test_one_stop_string_is_a_list_of_one() -> None:
    assert given(stop="\n") == {"stop": ["\n"]}
    assert given(stop=["a", "b"]) == {"stop": ["a", "b"]}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 2.1},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "0.7"},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"max_tokens": 1, "max_completion_tokens": 2},
        {"seed": -1},
        {"seed": MAX_SEED + 1},
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"stop": [1]},
        {"n": 0},
        {"n": 129},
        {"best_of": 3},
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SamplingOptions.model_validate(options)
