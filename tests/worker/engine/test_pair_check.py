"""What `worker pairs` finds out about a pair."""

from pathlib import Path

import pytest

from tests.worker.engine.tiny import save_tiny_model
from worker.engine.errors import EngineError, ModelLoadError, OutOfMemory, VocabularyMismatch
from worker.engine.pair_check import check_pair
from worker.engine.types import FolderModel, Pair


@pytest.fixture
def target(tmp_path: Path) -> FolderModel:
    return FolderModel(save_tiny_model(tmp_path / "target", "qwen3"))


def test_a_sound_pair_is_described(target: FolderModel, tmp_path: Path) -> None:
    draft = FolderModel(save_tiny_model(tmp_path / "draft", vocab_size=279, chat_template=None))
    found = check_pair(Pair(target, method="draft_model", draft=draft, context_limit=64, max_rows=2))
    assert found.target.name == str(target.path)
    assert found.target.architecture == "Qwen3ForCausalLM"
    assert found.target.tokens == 279
    assert found.target.has_chat_template
    assert found.target.eos_tokens == ("<eos>", "<end>")
    assert found.draft is not None
    assert not found.draft.has_chat_template
    assert found.context_limit == 64
    assert 0 < found.memory.total < found.available_memory


def test_a_pair_without_a_draft_model(target: FolderModel) -> None:
    assert check_pair(Pair(target, method="prompt_lookup")).draft is None


def test_each_fault_has_its_error(target: FolderModel, tmp_path: Path) -> None:
    other = FolderModel(save_tiny_model(tmp_path / "other", words=("at", "of")))
    for pair, error in (
        (Pair(FolderModel(tmp_path / "none")), ModelLoadError),
        (Pair(target, method="draft_model", draft=other), VocabularyMismatch),
        (Pair(target, kv_cache="1000000GiB", max_rows=10**12), OutOfMemory),
    ):
        with pytest.raises(error):
            check_pair(pair)
    with pytest.raises(EngineError, match="needs a draft model"):
        check_pair(Pair(target, method="draft_model"))


def test_a_model_the_engine_cannot_serve_is_refused(tmp_path: Path) -> None:
    rope = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 128,
    }
    folder = save_tiny_model(tmp_path / "dynamic", rope_parameters=rope)
    with pytest.raises(EngineError, match="dynamic position embedding"):
        check_pair(Pair(FolderModel(folder)))
