"""A drafter gets better, within its budget, and a run that was interrupted ends as one that was not."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worker.distill.texts import random_text, tiny_network
from worker.distill.batches import chances, plan_epoch
from worker.distill.evaluating import drafter_tally
from worker.distill.text import Text
from worker.distill.training import Budget, Trainer
from worker.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.distill.batches.ANCHORS_PER_STEP", 12)
    monkeypatch.setattr("worker.distill.batches.ANCHORS_PER_TEXT", 8)


TEXTS = [random_text(4, 20, seed=seed) for seed in range(6)]


def _trainer(texts: list[Text], epochs: float, learning_rate: float = 6e-4) -> Trainer:
    where = [chances(text) for text in texts]
    return Trainer(tiny_network(draft_vocab=35), texts, where, Budget(epochs), 0, learning_rate)


def _never(_loss: float) -> bool:
    return False


@pytest.mark.parametrize("per_text", [8, 32], ids=["several visits", "a visit"])
def test_an_epoch_begins_where_decoding_would(per_text: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No anchor twice, each as often as is likely, in an order of its own."""
    monkeypatch.setattr("worker.distill.batches.ANCHORS_PER_TEXT", per_text)
    likely = torch.tensor([1.0, *[0.2, 0.8] * 15])
    texts = [(4, likely), (3, torch.ones(2)), (2, torch.ones(0))]
    epochs = [plan_epoch(texts, seed) for seed in range(300)]
    assert epochs[3] == plan_epoch(texts, seed=3) != epochs[4]
    found: Counter[tuple[int, int]] = Counter()
    for epoch in epochs:
        anchors = [(visit.text, anchor) for batch in epoch for visit in batch for anchor in visit.anchors]
        assert len(anchors) == len(set(anchors))
        found.update(anchors)
    assert found[1, 3] == found[1, 4] == 300
    assert found.keys() == {(0, anchor) for anchor in range(4, 35)} | {(1, 3), (1, 4)}
    assert sum(found[0, anchor] for anchor in range(4, 35)) / 300 == pytest.approx(float(likely.sum()), abs=1)
    rare, often = (sum(found[0, anchor] for anchor in range(first, 35, 2)) for first in (5, 6))
    assert 2.5 < often / rare < 4.5


def test_what_the_target_was_unsure_of_is_an_anchor() -> None:
    text = replace(
        random_text(2, 4),
        tokens=torch.tensor([1, 2, 3, 4, 5, 6]),
        top_ids=torch.tensor([[3, 1], [4, 1], [1, 5], [6, 1]]),
        top_probs=torch.tensor([[0.9, 0.1], [1.0, 0.0], [0.6, 0.4], [1.0, 0.0]]),
    )
    first, likely = chances(text)
    assert first == 2
    torch.testing.assert_close(likely, torch.tensor([1.0, 0.2, 0.59]))


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


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    trainer, file = _trainer(TEXTS, 1), tmp_path / "checkpoint.pt"
    trainer.save(file)
    state = torch.load(file, weights_only=True)
    del state["token_ids"], state["best"]
    torch.save(state, file)
    with pytest.raises(ConfigurationError, match=r"checkpoint\.pt lacks best, token_ids: .* --output"):
        trainer.load(file)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut short"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"checkpoint\.pt cannot be read.* --output"):
        _trainer(TEXTS, 1).load(file)


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    trainer = _trainer(TEXTS, 1)
    trainer.save(tmp_path / "checkpoint.pt")
    trainer.network.token_ids[0] = 1
    with pytest.raises(ConfigurationError, match=r"another vocabulary.*--draft-vocab"):
        trainer.load(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize(
    ("of_last", "of_best", "is_best"), [(1.2, 1.3, True), (1.3, 1.2, False), (1.3, 1.3, False)]
)
def test_the_better_weights_are_kept(of_last: float, of_best: float, is_best: bool) -> None:
    """Those of the highest tau or the last ones, as more texts say."""
    trainer = _trainer(TEXTS, 3)
    weight = trainer.network.fc.weight
    trainer.note(1.2)
    trainer.step()
    trainer.note(1.4)
    best = weight.detach().clone()
    for tau in (1.3, 1.1):
        trainer.step()
        trainer.note(tau)
    last = weight.detach().clone()
    assert not torch.equal(last, best)
    trainer.take_best(lambda: of_best if torch.equal(weight, best) else of_last)
    assert torch.equal(weight, best if is_best else last)


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
    where = [chances(text) for text in TEXTS]
    trainer = Trainer(tiny_network(), TEXTS, where, Budget(1e9, seconds=1e-6), 0)
    trainer.run(_never, 1)
    assert trainer.progress.step == 1
