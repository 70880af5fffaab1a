"""A drafter that says how sure it is gets believed as far as it has been right."""

import numpy as np
import pytest

from worker.engine.drafters import Draft
from worker.engine.planner.confidence import CalibratedConfidence

GAMMA = 4


class Stream:
    def __init__(self) -> None:
        self.tokens = [1, 2, 3]


def teach(survival: CalibratedConfidence, factor: float, source: str = "network") -> None:
    """512 proposals whose logits are too large by a factor; tokens differ where the true confidence fails."""
    generator = np.random.default_rng(0)
    row = Stream()
    for _ in range(512):
        true = generator.normal(0.5, 1.0, GAMMA)
        draft = Draft([7] * GAMMA, source=source, confidence=(true * factor).tolist())
        survival.watch(row, draft)
        right = generator.random(GAMMA) < 1 / (1 + np.exp(-true))
        accepted = GAMMA if right.all() else int(right.argmin())
        row.tokens += [7] * accepted + [8]
        survival.settle([row])


def test_nothing_known_yet_its_word_is_taken() -> None:
    survival = CalibratedConfidence(GAMMA)
    draft = Draft([7, 7], source="network", confidence=[0.0, 1.0, 5.0])
    expected = [0.5, 0.5 / (1 + np.exp(-1.0)), 0, 0]
    assert survival.estimate([Stream()], [draft])[0].tolist() == pytest.approx(expected)
    assert survival.expected(Stream(), draft) == pytest.approx(sum(expected))


@pytest.mark.parametrize("factor", [4.0, 1.0, 0.4])
def test_one_that_is_too_sure_or_too_modest_is_corrected(factor: float) -> None:
    survival = CalibratedConfidence(GAMMA)
    teach(survival, factor)
    for true in (-1.0, 0.0, 1.5):
        draft = Draft([7] * GAMMA, source="network", confidence=[true * factor] * GAMMA)
        expected = (1 / (1 + np.exp(-true))) ** np.arange(1, GAMMA + 1)
        assert survival.estimate([Stream()], [draft])[0].tolist() == pytest.approx(expected, abs=0.12)


def test_sources_are_corrected_apart() -> None:
    survival = CalibratedConfidence(GAMMA)
    teach(survival, 4.0, "network sampled")
    draft = Draft([7], source="network", confidence=[2.0])
    assert survival.expected(Stream(), draft) == pytest.approx(1 / (1 + np.exp(-2.0)))


def test_what_has_no_confidence_is_known_by_its_rates() -> None:
    survival = CalibratedConfidence(GAMMA)
    row = Stream()
    for _ in range(60):
        survival.watch(row, Draft([9, 9], match=3, source="lookup"))
        row.tokens += [8]
        survival.settle([row])
    looked_up, sure = Draft([9, 9], 3, "lookup"), Draft([9, 9], 0, "network", [3.0, 3.0])
    estimated = survival.estimate([Stream(), Stream()], [looked_up, sure])
    assert estimated[0, 0] < 0.2
    assert estimated[1, 0] > 0.9
    assert estimated[:, 2:].max() == 0


def test_a_row_that_ends_tells_only_of_the_tokens_that_came() -> None:
    survival = CalibratedConfidence(1)
    for _ in range(640):  # the row ended before anything came: neither right nor wrong
        row = Stream()
        survival.watch(row, Draft([7], source="network", confidence=[2.0]))
        survival.forget(row)
    assert survival.expected(Stream(), Draft([7], 0, "network", [2.0])) == pytest.approx(
        1 / (1 + np.exp(-2.0))
    )
