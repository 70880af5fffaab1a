"""The search finds what trying every plan finds."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.planner.search import Floats, best_cut

rates = st.floats(0.05, 1.0)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Floats, Floats, float]:
    """Survival of a few rows, some with shorter proposals than others; a staircase; time already spent."""
    num_rows, gamma = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    survival = np.array([draw(st.lists(rates, min_size=gamma, max_size=gamma)) for _ in range(num_rows)])
    survival = survival.cumprod(axis=1)
    for row in survival:
        row[draw(st.integers(0, gamma)) :] = 0.0
    size = num_rows * gamma
    stairs = draw(st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0]), min_size=size, max_size=size))
    return survival, 1.0 + np.concatenate(([0.0], np.cumsum(stairs))), draw(st.floats(0.0, 2.0))


def rate(lengths: tuple[int, ...], survival: Floats, times: Floats, spent: float) -> float:
    """Tokens a second of a plan."""
    tokens = len(lengths) + sum(row[:length].sum() for row, length in zip(survival, lengths, strict=True))
    return float(tokens / (times[sum(lengths)] + spent))


@settings(deadline=None, max_examples=300)
@given(situation=situations())
def test_no_plan_beats_the_one_found(situation: tuple[Floats, Floats, float]):
    survival, times, spent = situation
    proposed = [int(np.count_nonzero(row)) for row in survival]

    found = tuple(best_cut(survival, times, spent).tolist())

    assert all(length <= most for length, most in zip(found, proposed, strict=True))
    best = max(
        rate(plan, survival, times, spent) for plan in product(*(range(most + 1) for most in proposed))
    )
    assert rate(found, survival, times, spent) >= best * (1 - 1e-9)


@settings(deadline=None)
@given(situation=situations(), margin=st.floats(0.0, 0.5))
def test_a_gain_below_the_margin_is_not_worth_a_risk(situation: tuple[Floats, Floats, float], margin: float):
    survival, times, spent = situation

    found = tuple(best_cut(survival, times, spent, margin=margin).tolist())

    plain = rate((0,) * len(survival), survival, times, spent)
    assert not any(found) or rate(found, survival, times, spent) >= plain * (1 + margin) * (1 - 1e-9)


def test_a_probe_verifies_the_cheapest_of_bad_plans():
    survival = np.array([[0.2, 0.1], [0.3, 0.0]])
    times = np.array([1.0, 2.0, 4.0, 8.0])
    assert best_cut(survival, times, 0.0).tolist() == [0, 0]
    assert best_cut(survival, times, 0.0, at_least=1).tolist() == [0, 1]


def test_a_rise_after_a_fall_is_found():
    """The paper's search stops at the first fall; this one may look beyond the step of a staircase."""
    survival = np.array([[0.9, 0.9, 0.9, 0.9]])
    times = np.array([1.0, 2.0, 2.0, 2.0, 2.0])
    assert best_cut(survival, times, 0.0).tolist() == [4]


def test_nothing_proposed_is_plain_decoding():
    assert best_cut(np.zeros((3, 2)), np.ones(7), 0.1).tolist() == [0, 0, 0]
