"""Samples that are flagged, and those that only look alike."""

import random
from typing import Any

import pytest

from db.tables import QualityFlag
from worker.engine.types import Generation, Method
from worker.quality import quality_flag


def generated(tokens: list[int], method: Method = "prompt_lookup", **changes: Any) -> Generation:
    values: dict[str, Any] = {
        "request_id": 0, "sample_index": 0, "text": "", "token_ids": tuple(tokens), "finish_reason": "length",
        "prompt_tokens": 5, "cached_tokens": 0, "waited_seconds": 0.0, "prefill_seconds": 0.1,
        "first_token_seconds": 0.1, "decode_seconds": 1.0, "method": method, "spec_disabled_reason": None,
        "num_steps": 40, "num_spec_steps": 40, "num_draft_tokens": 200, "num_accepted_draft_tokens": 180,
        "acceptance_histogram": (), "rows_in_flight": 1.0,
    }  # fmt: skip
    return Generation(**values | changes)


def prose(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


@pytest.mark.parametrize("period", [1, 2, 7, 16])
def test_an_output_that_ends_in_the_same_phrase_over_and_over_is_flagged(period: int) -> None:
    tokens = prose(100) + (prose(period, seed=1) * 64)[:66]  # the last time in part
    assert quality_flag(generated(tokens)) is QualityFlag.REPEATS
    stopped = generated([*tokens, 2], finish_reason="stop")
    assert quality_flag(stopped) is QualityFlag.REPEATS, "an EOS after it changes nothing"


def test_a_few_repetitions_are_none_nor_a_loop_that_the_text_got_out_of() -> None:
    phrase = prose(20, seed=1)
    assert quality_flag(generated(prose(100) + phrase * 3)) is None
    assert quality_flag(generated([7] * 63)) is None
    assert quality_flag(generated([7] * 200 + prose(40))) is None


def test_a_copy_of_the_prompt_is_no_loop_though_every_draft_is_accepted() -> None:
    copied = generated(prose(400), num_draft_tokens=390, num_accepted_draft_tokens=390)
    assert quality_flag(copied) is None


def test_a_drafting_model_that_was_never_right_is_flagged() -> None:
    wrong = {"num_draft_tokens": 200, "num_accepted_draft_tokens": 0}
    assert quality_flag(generated(prose(40), "draft_model", **wrong)) is QualityFlag.GARBLED
    assert quality_flag(generated(prose(40), "prompt_lookup", **wrong)) is None
