"""What one prompt is sampled with: the model's defaults < the pair's < the batch's < its own."""

import pytest

from worker.engine.errors import PromptError
from worker.engine.types import Sampling
from worker.sampling import SEED_MASK, effective_seed, resolve, to_engine


def test_later_options_win_one_by_one() -> None:
    model_and_pair = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 512}
    batch = {"temperature": 0.2, "stop": ["END"]}
    prompt = {"temperature": 0.0, "max_tokens": 7}
    assert resolve(model_and_pair, batch) == {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "max_tokens": 512,
        "min_tokens": 0,
        "stop": ["END"],
        "stop_token_ids": [],
        "response_format": {"type": "text"},
    }
    assert to_engine(resolve(model_and_pair, batch, prompt), seed=3) == Sampling(
        temperature=0.0, top_p=0.9, max_tokens=7, stop=("END",), seed=3
    )


def test_what_nobody_says_is_the_engine_s_own_default() -> None:
    assert to_engine(resolve({}), seed=0) == Sampling()


def test_resolving_twice_changes_nothing() -> None:
    defaults = {"temperature": 0.6, "max_tokens": 512}
    resolved = resolve(defaults, {"seed": 5})
    assert resolve(defaults, resolved) == resolved


def test_n_makes_requests_and_is_no_option_of_one() -> None:
    assert to_engine(resolve({}, {"n": 4}), seed=0) == Sampling()


def test_every_option_reaches_the_engine_in_its_form() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    given = {
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"7": -100, "8": 1.5},
        "min_tokens": 4,
        "stop_token_ids": [9],
        "logprobs": 2,
        "response_format": schema,
    }
    assert to_engine(resolve({}, given), seed=1) == Sampling(
        seed=1,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias=((7, -100), (8, 1.5)),
        min_tokens=4,
        stop_token_ids=(9,),
        logprobs=2,
        json_schema='{"type": "integer"}',
    )


def test_a_prompt_s_format_takes_the_place_of_the_batch_s() -> None:
    batch = {"response_format": {"type": "json_object"}}
    assert to_engine(resolve({}, batch), seed=0).json_schema == '{"type": "object"}'
    regex = {"response_format": {"type": "regex", "regex": "a+"}}
    assert to_engine(resolve({}, batch, regex), seed=0) == Sampling(regex="a+")
    assert to_engine(resolve({}, batch, {"response_format": {"type": "text"}}), seed=0) == Sampling()


def test_an_option_that_cannot_be_honoured_fails_the_prompt_by_name() -> None:
    with pytest.raises(PromptError, match="mirostat") as caught:
        to_engine(resolve({}, {"mirostat": 2}), seed=0)
    assert caught.value.code == "unsupported_option"


def test_a_given_seed_is_used_as_it_is() -> None:
    assert effective_seed(resolve({}, {"seed": 42}), batch_seed=1, position=0) == 42
    assert effective_seed(resolve({}, {"seed": 0}), batch_seed=1, position=0) == 0


def test_without_a_seed_every_position_of_every_batch_has_its_own() -> None:
    seeds = {effective_seed({}, batch, position) for batch in range(50) for position in range(100)}
    assert len(seeds) == 5000
    assert all(0 <= seed <= SEED_MASK for seed in seeds)


def test_the_mix_of_seed_and_position_is_fixed_for_ever() -> None:
    """Stored batches are repeated by it: a change here would change what they generate."""
    assert effective_seed({}, 0, 0) == 0xE220A8397B1DCDAF & SEED_MASK  # SplitMix64's first output from 0
    assert effective_seed({}, 7, 1) == 309689372594955804
