"""A pair's drafter is found and judged before the pair serves."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.engine.dspark.drafters import CONFIG, random_network
from tests.worker.engine.tiny import save_tiny_model
from worker.engine.dspark.checkpoints import save_network
from worker.engine.errors import EngineError, ModelLoadError
from worker.engine.pair_check import check_pair
from worker.engine.types import FolderModel, HubModel, PackageModel, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """A tiny target, and a drafter for it in a folder."""
    target = save_tiny_model(tmp_path / "target", "qwen3", layers=6)
    config = replace(CONFIG, hidden_size=32, vocab_size=320, draft_vocab_size=64, mask_token_id=319)
    save_network(random_network(config), tmp_path / "drafter", str(target))
    draft = FolderModel(tmp_path / "drafter")
    return Pair(FolderModel(target), "dspark", draft, gamma=5, context_limit=64, max_rows=2)


def test_a_sound_pair_is_described(pair: Pair) -> None:
    found = check_pair(pair)

    assert isinstance(pair.draft, FolderModel)
    assert found.draft is not None
    assert found.draft.name == str(pair.draft.path)
    assert found.draft.tokens == 64
    # float32; keys and values of 2 layers with 2 heads of 8; all weights but the target's embeddings.
    assert found.memory.draft_cache == found.memory.cached_tokens * (2 * 2 * 2 * 8) * 4
    assert found.memory.draft_weights == (found.draft.parameters - 320 * 32) * 4


def test_a_drafter_on_the_hub_is_taken_at_its_revision(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a cache laid out as the hub's client does, offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository, commit = tmp_path / "hub" / "models--org--drafter", "a" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "v2").write_text(commit)
    (repository / "snapshots").mkdir()
    (tmp_path / "drafter").rename(repository / "snapshots" / commit)

    found = check_pair(replace(pair, draft=HubModel("org/drafter", "v2")))

    assert found.draft is not None
    assert found.draft.name == "org/drafter@v2"
    with pytest.raises(ModelLoadError, match="cannot download the drafter org/drafter@main"):
        check_pair(replace(pair, draft=HubModel("org/drafter")))


def test_more_proposals_than_the_drafter_was_trained_for_are_refused(pair: Pair) -> None:
    with pytest.raises(ModelLoadError, match=r"gamma is 6, but the drafter .* to propose 5 tokens: lower it"):
        check_pair(replace(pair, gamma=6))


def test_a_drafter_of_another_target_is_refused_with_both_names(pair: Pair, tmp_path: Path) -> None:
    other = FolderModel(save_tiny_model(tmp_path / "other", "qwen3", layers=5))

    with pytest.raises(ModelLoadError, match=r"target \(layers 6 instead of 5\), not for .*other"):
        check_pair(replace(pair, target=other))


def test_a_drafter_that_is_nowhere_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="needs a trained drafter"):
        check_pair(replace(pair, draft=None))
    with pytest.raises(ModelLoadError, match=r"no drafter in .*nothing"):
        check_pair(replace(pair, draft=FolderModel(tmp_path / "nothing")))
    with pytest.raises(ModelLoadError, match=r"the package json in .* has no folder drafters/x: it has"):
        check_pair(replace(pair, draft=PackageModel("json", "drafters/x")))
    with pytest.raises(
        ModelLoadError, match=r"cannot download the drafter no such/name@main: .*Check the name"
    ):
        check_pair(replace(pair, draft=HubModel("no such/name")))
