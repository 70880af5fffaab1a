"""Pairs are declared in specmill.toml; equal declarations have equal fingerprints."""

from pathlib import Path
from typing import get_args

import pytest

from db.errors import ConfigError
from worker.engine.types import DType, Method
from worker.wire.declaration import PairSettings
from worker.wire.pairs import UnknownPair, fingerprint, get_pair, load_pairs


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "specmill.toml"
    path.write_text("")
    monkeypatch.setenv("SPECMILL_CONFIG", str(path))
    return path


def test_the_default_pair_needs_no_declaration(toml: Path) -> None:  # noqa: ARG001 (an empty one)
    pair = get_pair("smollm2")
    assert pair.method == "dspark"
    assert pair.max_tokens == 512


def test_a_table_declares_a_pair(toml: Path) -> None:
    toml.write_text(
        """
        [pairs.qwen3]
        target = { hub = "Qwen/Qwen3-8B", revision = "abc" }
        draft = { folder = "/models/qwen3-small" }
        method = "draft_model"
        dtype = "bfloat16"
        """
    )
    assert set(load_pairs()) == {"smollm2", "qwen3"}
    assert get_pair("qwen3").model_dump()["target"] == {"hub": "Qwen/Qwen3-8B", "revision": "abc"}


def test_an_unknown_pair_is_refused_with_those_known(toml: Path) -> None:  # noqa: ARG001 (a fixture)
    with pytest.raises(UnknownPair, match=r'unknown pair "nope"; known here: smollm2\. .*\[pairs\.nope\]'):
        get_pair("nope")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ('target = { hub = "a/b" }\nmethod = "draft_model"', "needs draft"),
        ('target = { hub = "a/b" }\nmethod = "dspark"', "needs draft"),
        ('target = { hub = "a/b" }\ndraft = { hub = "a/c" }', "uses none"),
        ('target = { hub = "a/b" }\ngama = 3', "gama"),
        ('target = { hub = "a/b" }\nmethod = "magic"', "method"),
        ("gamma = 3", "target"),
    ],
)
def test_a_bad_declaration_is_refused_with_its_place(toml: Path, table: str, complaint: str) -> None:
    toml.write_text(f"[pairs.bad]\n{table}")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_pairs()
    assert str(toml) in str(caught.value)
    assert "pairs.bad" in str(caught.value)


def test_the_fingerprint_follows_what_changes_output_or_speed() -> None:
    pair = PairSettings.model_validate({"target": {"hub": "a/b"}})
    same = PairSettings.model_validate({"gamma": 5, "target": {"revision": "main", "hub": "a/b"}})
    assert fingerprint(pair) == fingerprint(same)
    for change in (
        {"gamma": 4},
        {"dtype": "float64"},
        {"max_tokens": 9},
        {"target": {"hub": "a/b", "revision": "x"}},
    ):
        changed = PairSettings.model_validate({"target": {"hub": "a/b"}} | change)
        assert fingerprint(changed) != fingerprint(pair), change


def test_declarations_offer_what_the_engine_offers() -> None:
    fields = PairSettings.model_fields
    assert get_args(fields["method"].annotation) == get_args(Method)
    assert get_args(fields["dtype"].annotation) == get_args(DType)
