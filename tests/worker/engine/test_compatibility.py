"""Tokenizers are compared by what is behind each id, never by their sizes."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.worker.engine.tiny import save_tiny_model, tiny_tokenizer
from worker.engine.compatibility import check_draft, check_vocabularies
from worker.engine.errors import VocabularyMismatch
from worker.engine.loading import LoadedModel, load_model
from worker.engine.types import FolderModel

NAMES = ("big", "small")


def with_words(*words: str) -> PreTrainedTokenizerFast:
    return tiny_tokenizer(words=words)


def load(folder: Path) -> LoadedModel:
    return load_model(FolderModel(folder), "float32", "cpu", attention="sdpa")


def test_equal_tokenizers_are_accepted() -> None:
    check_vocabularies(tiny_tokenizer(), tiny_tokenizer(chat_template=None), NAMES)


def test_the_same_size_with_other_tokens_is_refused_with_both_named_and_the_first_difference() -> None:
    first, second = with_words("the", "on"), with_words("the", "at")
    assert len(first) == len(second)
    with pytest.raises(VocabularyMismatch) as error:
        check_vocabularies(first, second, NAMES)
    assert str(error.value).startswith(
        "the tokenizers of big (263 tokens) and small (263 tokens) differ in 1 ids: "
        "262 is 'on' for the first and 'at' for the second"
    )


def test_a_vocabulary_that_is_the_beginning_of_another_is_refused() -> None:
    with pytest.raises(VocabularyMismatch, match="262 is 'on' for the first and no token for the second"):
        check_vocabularies(with_words("the", "on"), with_words("the"), NAMES)


def test_added_tokens_that_only_one_has_are_accepted() -> None:
    newer = tiny_tokenizer()
    newer.add_tokens(["<think>", "</think>"])
    check_vocabularies(newer, tiny_tokenizer(), NAMES)
    check_vocabularies(tiny_tokenizer(), newer, NAMES)


def test_added_tokens_that_differ_are_refused() -> None:
    first, second = tiny_tokenizer(), tiny_tokenizer()
    first.add_tokens(["<think>"])
    second.add_tokens(["<tool>"])
    with pytest.raises(VocabularyMismatch, match="'<think>' for the first and '<tool>'"):
        check_vocabularies(first, second, NAMES)


def test_models_padded_to_different_sizes_are_accepted(tmp_path: Path) -> None:
    check_draft(
        load(save_tiny_model(tmp_path / "target", vocab_size=320)),
        load(save_tiny_model(tmp_path / "draft", vocab_size=279)),
    )


def test_a_draft_model_without_embeddings_for_the_targets_ids_is_refused(tmp_path: Path) -> None:
    target = load(save_tiny_model(tmp_path / "target"))
    draft = load(save_tiny_model(tmp_path / "draft", vocab_size=270))
    with pytest.raises(VocabularyMismatch, match=r"ids up to 278, but .*draft has embeddings for 270"):
        check_draft(target, draft)
