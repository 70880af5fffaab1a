"""A drafter gets better, within its budget, and a run that was interrupted ends as one that was not."""

from pathlib import Path

import pytest
import torch

from tests.worker.distill.texts import random_text, tiny_network
from worker.distill.batches import plan_epoch
from worker.distill.evaluating import drafter_tally
from worker.distill.text import Text
from worker.distill.training import Budget, Trainer


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.distill.batches.ANCHORS_PER_STEP", 12)
    monkeypatch.setattr("worker.distill.batches.ANCHORS_PER_TEXT", 8)


TEXTS = [random_text(4, 20, seed=seed) for seed in range(6)]


def _trainer(texts: list[Text], epochs: float, learning_rate: float = 6e-4) -> Trainer:
    sizes = [(text.prompt_tokens, len(text.tokens)) for text in texts]
    return Trainer(tiny_network(draft_vocab=35), texts, sizes, Budget(epochs), 0, learning_rate)


def _never(_loss: float) -> bool:
    return False


def test_an_epoch_has_every_anchor_once() -> None:
    sizes = [(4, 24), (3, 4), (7, 12), (2, 2)]
    batches = plan_epoch(sizes, seed=3)
    found = [(visit.text, anchor) for batch in batches for visit in batch for anchor in visit.anchors]
    expected = [
        (text, anchor) for text, (prompt, end) in enumerate(sizes) for anchor in range(prompt, end - 1)
    ]
    assert sorted(found) == expected
    assert plan_epoch(sizes, seed=3) == batches != plan_epoch(sizes, seed=4)


def test_it_learns_its_texts() -> None:
    trainer = _trainer(TEXTS[:2], 60, learning_rate=1e-2)
    before = drafter_tally(trainer.network, TEXTS[:2]).tau
    trainer.run(_never, 1)
    assert drafter_tally(trainer.network, TEXTS[:2]).tau > before + 0.5
    assert trainer.share == 1


def test_the_targets_own_tables_stay() -> None:
    trainer = _trainer(TEXTS, 1)
    before = [trainer.network.embed_tokens.weight.clone(), trainer.network.lm_head.weight.clone()]
    trainer.run(_never, 1)
    after = [trainer.network.embed_tokens.weight, trainer.network.lm_head.weight]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_an_interrupted_run_ends_as_another(tmp_path: Path) -> None:
    whole = _trainer(TEXTS, 2)
    whole.run(_never, 1)
    first = _trainer(TEXTS, 2)
    first.run(lambda _: True, 3)  # stops at a third
    assert 0 < first.share < 0.5
    first.note(1.5)
    first.save(tmp_path / "checkpoint.pt")
    second = _trainer(TEXTS, 2)
    second.load(tmp_path / "checkpoint.pt")
    assert second.progress == first.progress
    second.run(_never, 1)
    for ours, expected in zip(second.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_the_best_weights_are_kept() -> None:
    trainer = _trainer(TEXTS, 3)
    weight = trainer.network.fc.weight
    trainer.note(1.2)
    trainer.step()
    trainer.note(1.4)
    best = weight.detach().clone()
    for tau in (1.3, 1.1):
        trainer.step()
        trainer.note(tau)
    assert not torch.equal(weight, best)
    trainer.take_best()
    assert torch.equal(weight, best)


@pytest.mark.parametrize(
    ("steps", "taus", "stuck"),
    [
        pytest.param(4, [2.0, *[1.9] * 8], True, id="long since the best"),
        pytest.param(4, [2.0, *[1.9] * 7], False, id="not so long"),
        pytest.param(4, [1.9] * 20, False, id="as good as the best"),
        pytest.param(1, [2.0, *[1.9] * 20], False, id="at a high rate"),
        pytest.param(4, [], False, id="nothing noted"),
    ],
)
def test_a_run_is_given_up_in_its_second_half(steps: int, taus: list[float], stuck: bool) -> None:
    trainer = _trainer(TEXTS, 0.5)
    for _ in range(steps):
        trainer.step()
    for tau in taus:
        trainer.note(tau)
    assert trainer.is_stuck is stuck


def test_a_budget_of_time_ends_it() -> None:
    sizes = [(text.prompt_tokens, len(text.tokens)) for text in TEXTS]
    trainer = Trainer(tiny_network(), TEXTS, sizes, Budget(1e9, seconds=1e-6), 0)
    trainer.run(_never, 1)
    assert trainer.progress.step == 1
