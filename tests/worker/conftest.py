"""A tiny pair, declared in a specmill.toml that every setting is read from."""

import json
from pathlib import Path

import pytest

from tests.worker.engine.tiny import save_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and a draft model whose tokenizer differs."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "tiny")
    save_tiny_model(folder / "stranger", seed=1)
    tokenizer = folder / "stranger" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    tokenizer.write_text(json.dumps(content))
    return folder


@pytest.fixture
def tiny_toml(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Beside the models; a short lease, so that what the dead held comes back soon."""
    path = tiny_folder / "specmill.toml"
    path.write_text(
        f"""
        lease_seconds = 2

        [pairs.tiny]
        target = {{ folder = "{tiny_folder}/tiny" }}
        dtype = "float64"
        max_rows = 4
        max_tokens = 24

        [pairs.mismatched]
        target = {{ folder = "{tiny_folder}/tiny" }}
        draft = {{ folder = "{tiny_folder}/stranger" }}
        method = "draft_model"
        dtype = "float64"

        [pairs.missing]
        target = {{ folder = "{tiny_folder}/not-there" }}
        """
    )
    monkeypatch.setenv("SPECMILL_CONFIG", str(path))
    return path
