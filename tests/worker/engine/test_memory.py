"""A pair too large for its device is refused before its weights are read."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.worker.engine.tiny import save_tiny_model, tiny_model
from worker.engine.errors import ModelLoadError, OutOfMemory
from worker.engine.memory import available_memory, check_fits, estimate
from worker.engine.types import FolderModel, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Its weights are gone: only the config may be needed."""
    folder = save_tiny_model(tmp_path / "model", layers=3)
    (folder / "model.safetensors").unlink()
    return Pair(FolderModel(folder), dtype="bfloat16", context_limit=100, max_rows=4)


def test_weights_and_the_cache_of_full_rows_are_counted(pair: Pair) -> None:
    needed = estimate(pair)
    assert needed.target_weights == 2 * tiny_model(layers=3).num_parameters()
    per_token = 3 * 2 * (2 * 8) * 2  # layers, keys and values, heads x head_dim, bytes
    assert needed.target_cache == 4 * 100 * per_token
    assert needed.total == needed.target_weights + needed.target_cache


def test_shared_embeddings_are_counted_once(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tied", tie_word_embeddings=True)
    needed = estimate(Pair(FolderModel(folder), dtype="float32"))
    assert needed.target_weights == 4 * tiny_model(tie_word_embeddings=True).num_parameters()


def test_a_draft_model_counts_only_for_the_method_that_runs_it(pair: Pair, tmp_path: Path) -> None:
    draft = FolderModel(save_tiny_model(tmp_path / "draft", layers=1, max_position_embeddings=50))
    needed = estimate(replace(pair, method="draft_model", draft=draft))
    assert needed.draft_weights == 2 * tiny_model(layers=1).num_parameters()
    assert needed.draft_cache == estimate(pair).target_cache // 3 // 2  # a layer of three, half as long
    assert estimate(replace(pair, draft=draft)) == estimate(pair)


def test_what_fits_is_accepted(pair: Pair) -> None:
    total = estimate(pair).total
    assert check_fits(pair, available=total).total == total
    assert check_fits(pair) == estimate(pair)


def test_a_cache_too_large_says_how_many_tokens_would_fit(pair: Pair) -> None:
    needed = estimate(pair)
    half = needed.target_weights + needed.target_cache // 2
    with pytest.raises(OutOfMemory, match=r"at most 200 \(now 4 rows x 100 tokens\)"):
        check_fits(pair, available=half)
    check_fits(replace(pair, max_rows=2), available=half)


def test_weights_too_large_ask_for_a_smaller_model(pair: Pair) -> None:
    with pytest.raises(OutOfMemory, match=r"0\.00 GiB are free: use a smaller model"):
        check_fits(pair, available=1000)


def test_the_message_has_every_number(pair: Pair) -> None:
    with pytest.raises(OutOfMemory, match=r"needs \S+ GiB \(weights of \S+ \S+ GiB, KV cache \S+ GiB\)"):
        check_fits(replace(pair, max_rows=10**9), available=2**30)


def test_a_limit_beyond_the_models_context_is_refused(pair: Pair) -> None:
    with pytest.raises(ModelLoadError, match="context_limit is 1000"):
        estimate(replace(pair, context_limit=1000))


def test_free_memory_of_the_machine_is_the_cpus() -> None:
    assert 0 < available_memory("cpu") <= psutil.virtual_memory().total
