"""Sampling options as people write them."""

from typing import Any

import pytest

from worker.wire.sampling import MAX_SEED, OptionError, read_options


def given(**options: Any) -> dict[str, Any]:
    return read_options(options)


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
        {"min_p": -0.1},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": float("inf")},
        {"logit_bias": {"5": 101}},
        {"logit_bias": {"five": 1}},
        {"logit_bias": {str(i): 1 for i in range(1025)}},
        {"min_tokens": -1},
        {"stop_token_ids": [-1]},
        {"logprobs": 21},
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": 3, "top_logprobs": 3},
        {"top_logprobs": 1},
        {"response_format": "xml"},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
        {"regex": ""},
        {"regex": "(a"},
        {"regex": "a", "response_format": {"type": "json_object"}},
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        read_options(options)


def test_logprobs_are_the_number_of_alternatives() -> None:
    assert given(logprobs=True) == {"logprobs": 0}
    assert given(logprobs=True, top_logprobs=5) == {"logprobs": 5}
    assert given(logprobs=2) == {"logprobs": 2}
    assert given(logprobs=False, top_logprobs=0) == {}


def test_a_regex_is_a_response_format() -> None:
    assert given(regex="a+") == {"response_format": {"type": "regex", "regex": "a+"}}


def test_a_response_format_is_openais_and_json_is_short_for_any_object() -> None:
    schema = {"name": "n", "strict": True, "schema": {"type": "string"}}
    assert given(response_format="json") == {"response_format": {"type": "json_object"}}
    assert given(response_format={"type": "text"}) == {"response_format": {"type": "text"}}
    assert given(response_format={"type": "json_schema", "json_schema": schema}) == {
        "response_format": {"type": "json_schema", "json_schema": schema}
    }


def test_cells_hold_structure_as_json() -> None:
    cells = {"logit_bias": '{"5": -1}', "stop_token_ids": "[7]", "logprobs": "true", "top_logprobs": "2"}
    assert read_options(cells | {"min_p": "0.1", "response_format": "json"}, from_text=True) == {
        "logit_bias": {"5": -1},
        "stop_token_ids": [7],
        "logprobs": 2,
        "min_p": 0.1,
        "response_format": {"type": "json_object"},
    }
