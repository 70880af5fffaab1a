"""The rule of the acceptance columns."""

from db.acceptance import acceptance_columns, acceptance_length, acceptance_rate, is_garbled


def test_length_is_one_for_the_bonus_and_what_was_accepted_a_step() -> None:
    columns = acceptance_columns(
        num_draft_tokens=8, num_accepted_draft_tokens=6, num_spec_steps=4, histogram=[0, 2, 2]
    )
    assert columns == {
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 6,
        "acceptance_histogram": [0, 2, 2],
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.75,
    }


def test_where_nothing_was_drafted_every_column_is_null() -> None:
    assert set(acceptance_columns(0, 0, 0, [0, 0]).values()) == {None}
    assert acceptance_length(0, 0) is None
    assert acceptance_rate(None, None) is None


def test_a_drafter_that_was_always_wrong_is_zero_not_null() -> None:
    columns = acceptance_columns(3, 0, 2, [2, 0])
    assert columns["num_accepted_draft_tokens"] == 0
    assert columns["mean_acceptance_length"] == 1.0
    assert columns["draft_acceptance_rate"] == 0.0


def test_a_drafting_model_that_is_hardly_ever_right_is_garbled() -> None:
    assert is_garbled("draft_model", 16, 80, 1)
    assert not is_garbled("draft_model", 16, 80, 8), "a poor one is not"
    assert not is_garbled("draft_model", 15, 75, 0), "nor may bad luck be"
    assert not is_garbled("draft_model", 0, None, None)


def test_a_lookup_that_is_never_right_is_none_the_worse() -> None:
    assert not is_garbled("prompt_lookup", 1000, 5000, 0)
    assert not is_garbled("suffix", 1000, 5000, 0)
