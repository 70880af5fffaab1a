"""A pair too large for its device is refused before its weights are read."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.worker.engine.tiny import save_tiny_model, tiny_model
from worker.engine.errors import EngineError, ModelLoadError, OutOfMemory
from worker.engine.memory import available_memory, check_fits
from worker.engine.types import FolderModel, Pair

PER_TOKEN = 3 * 2 * (2 * 8) * 2  # layers, keys and values, heads x head_dim, bytes


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Its weights are gone: only the config may be needed."""
    folder = save_tiny_model(tmp_path / "model", layers=3)
    (folder / "model.safetensors").unlink()
    return Pair(FolderModel(folder), dtype="bfloat16", context_limit=100, max_rows=4)


def weights_of(pair: Pair) -> int:
    return check_fits(pair).target_weights


def test_weights_and_the_cache_of_full_rows_are_counted(pair: Pair) -> None:
    needed = check_fits(pair)
    assert needed.target_weights == 2 * tiny_model(layers=3).num_parameters()
    assert needed.cached_tokens == 4 * 100
    assert needed.target_cache == 4 * 100 * PER_TOKEN
    assert needed.total == needed.target_weights + needed.target_cache


def test_shared_embeddings_are_counted_once(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tied", tie_word_embeddings=True)
    needed = check_fits(Pair(FolderModel(folder), dtype="float32"))
    assert needed.target_weights == 4 * tiny_model(tie_word_embeddings=True).num_parameters()


def test_what_convolutions_remember_is_counted_in_the_cache(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "hybrid", "lfm2", layers=3)
    needed = check_fits(Pair(FolderModel(folder), dtype="bfloat16", context_limit=100, max_rows=4))
    assert needed.target_cache == 4 * 100 * (2 * 32 + 2 * (2 * 8)) * 2  # twice the hidden size, and one of KV


def test_a_draft_model_counts_only_for_the_method_that_runs_it(pair: Pair, tmp_path: Path) -> None:
    draft = FolderModel(save_tiny_model(tmp_path / "draft", layers=1, max_position_embeddings=50))
    needed = check_fits(replace(pair, method="draft_model", draft=draft))
    assert needed.draft_weights == 2 * tiny_model(layers=1).num_parameters()
    assert needed.draft_cache == needed.target_cache // 3 // 2  # a layer of three, half as long
    assert check_fits(replace(pair, draft=draft)) == check_fits(pair)


def test_the_cache_takes_its_share_of_what_the_weights_leave(pair: Pair) -> None:
    left = 2 * 150 * PER_TOKEN
    half = check_fits(pair, available=weights_of(pair) + left)
    assert (half.cached_tokens, half.target_cache) == (150, left // 2)
    all_of_it = check_fits(replace(pair, kv_cache="100%"), available=weights_of(pair) + left)
    assert all_of_it.cached_tokens == 300


def test_the_cache_takes_no_more_than_it_is_given(pair: Pair) -> None:
    needed = check_fits(replace(pair, kv_cache="1 MiB", max_rows=10**6))
    assert needed.cached_tokens == 2**20 // PER_TOKEN
    assert needed.target_cache <= 2**20


def test_target_and_draft_model_have_room_for_the_same_tokens(pair: Pair, tmp_path: Path) -> None:
    draft = FolderModel(save_tiny_model(tmp_path / "draft", layers=1))
    pair = replace(pair, method="draft_model", draft=draft, kv_cache="1MiB", max_rows=10**6)
    needed = check_fits(pair)
    assert needed.target_cache == 3 * needed.draft_cache
    assert 2**20 - 4 * PER_TOKEN < needed.target_cache + needed.draft_cache <= 2**20


def test_a_row_that_does_not_fit_says_how_many_tokens_would(pair: Pair) -> None:
    available = weights_of(pair) + 2 * 70 * PER_TOKEN
    message = r'70 tokens, and one row may have 100: raise kv_cache .*"50%".* context_limit to at most 70'
    with pytest.raises(OutOfMemory, match=message):
        check_fits(pair, available=available)
    assert check_fits(replace(pair, context_limit=70), available=available).cached_tokens == 70


def test_a_size_that_is_not_free_is_refused(pair: Pair) -> None:
    with pytest.raises(OutOfMemory, match=r'lower kv_cache of the pair \(now "1MiB"\)'):
        check_fits(replace(pair, kv_cache="1MiB", max_rows=10**6), available=weights_of(pair) + 2**19)


def test_weights_too_large_ask_for_a_smaller_model(pair: Pair) -> None:
    with pytest.raises(
        OutOfMemory, match=r"0\.00 GiB are free \(weights of \S+ \S+ GiB.*use a smaller model"
    ):
        check_fits(pair, available=1000)


def test_a_size_that_is_none_is_named(pair: Pair) -> None:
    with pytest.raises(EngineError, match='kv_cache is "lots"'):
        check_fits(replace(pair, kv_cache="lots"))


def test_a_limit_beyond_the_models_context_is_refused(pair: Pair) -> None:
    with pytest.raises(ModelLoadError, match="context_limit is 1000"):
        check_fits(replace(pair, context_limit=1000))


def test_free_memory_of_the_machine_is_the_cpus() -> None:
    assert 0 < available_memory("cpu") <= psutil.virtual_memory().total
