"""Texts come back from disk as they were, in shards that are only read where they are asked for."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tests.worker.distill.texts import random_text
from worker.distill.shards import Shards, ShardWriter
from worker.distill.text import Text

TEXTS = [random_text(3 + i, 2 + 2 * i, seed=i, place=10 * i) for i in range(7)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("worker.distill.shards.TEXTS_PER_SHARD", 3)
    writer = ShardWriter(tmp_path)
    writer.add(TEXTS[:2])
    writer.add(TEXTS[2:])
    writer.close()
    return tmp_path


def _assert_equal(found: Text, expected: Text) -> None:
    for part in fields(Text):
        ours, theirs = getattr(found, part.name), getattr(expected, part.name)
        assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs


def test_round_trip(folder: Path) -> None:
    assert len(list(folder.iterdir())) == 3
    found = Shards.read(folder)
    assert len(found) == 7
    for ours, expected in zip(found, TEXTS, strict=True):
        _assert_equal(ours, expected)
    assert found.prompts == [text.prompt for text in TEXTS]
    assert found.sizes == [(text.prompt_tokens, len(text.tokens)) for text in TEXTS]
    assert found.response_tokens == sum(text.response_tokens for text in TEXTS)


def test_some_of_them(folder: Path) -> None:
    some = Shards.read(folder).chosen(lambda prompt: prompt >= 30)
    assert some.prompts == [30, 40, 50, 60]
    _assert_equal(some[1:3][0], TEXTS[4])
    assert some.without_features()[0].features.numel() == 0


def test_what_comes_later_goes_into_further_shards(folder: Path) -> None:
    writer = ShardWriter(folder)
    writer.add([random_text(4, 4, place=99)])
    writer.close()
    assert Shards.read(folder).prompts[-1] == 99
    assert len(Shards.read(folder)) == 8
