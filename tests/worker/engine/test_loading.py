"""Models from a folder and from the hub's cache; what cannot be loaded says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker.engine.tiny import END, EOS, save_tiny_model
from worker.engine.errors import ModelLoadError
from worker.engine.loading import load_model, load_tokenizer
from worker.engine.types import DType, FolderModel

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def load_error(folder: Path, **options: int) -> str:
    with pytest.raises(ModelLoadError) as error:
        load_model(FolderModel(folder), "float32", "cpu", attention="sdpa", **options)
    return str(error.value)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_folder_gives_a_model_ready_to_run(folder: Path, dtype: DType) -> None:
    loaded = load_model(FolderModel(folder), dtype, "cpu", attention="sdpa")
    assert loaded.model.dtype == getattr(torch, dtype)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.context_limit == 256
    assert loaded.tokenizer.chat_template
    assert loaded.name == str(folder)


def test_every_eos_id_counts(folder: Path) -> None:
    """The tokenizer and the config know one, the generation config a second."""
    assert load_model(FolderModel(folder), "float32", "cpu", attention="sdpa").eos_ids == {EOS, END}


def test_loading_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(FolderModel(folder), "float32", "cpu", attention="sdpa")
    assert capfd.readouterr() == ("", "")


def test_the_pairs_context_limit_may_be_lower_but_not_higher(folder: Path) -> None:
    source = FolderModel(folder)
    assert load_model(source, "float32", "cpu", attention="sdpa", context_limit=100).context_limit == 100
    assert "context_limit is 300" in (message := load_error(folder, context_limit=300))
    assert "256 tokens" in message


def test_no_folder_and_no_model_in_it(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        assert f"no model in the folder {folder}" in load_error(folder)
        with pytest.raises(ModelLoadError, match=r"with config\.json"):
            load_tokenizer(FolderModel(folder))


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "incomplete: 1 weights are missing, model.norm.weight" in load_error(folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "Only safetensors weights are read" in load_error(folder)


def test_a_damaged_file_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert f"cannot load the model of {folder}" in load_error(folder)


def test_code_of_the_model_runs_only_if_the_pair_trusts_it(folder: Path) -> None:
    edit_config(
        folder, model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"}
    )
    (folder / "own.py").write_text("raise SystemExit('ran')")
    assert "set trust_remote_code = true in the pair" in load_error(folder)


def test_a_model_that_does_not_generate_is_refused(folder: Path) -> None:
    edit_config(folder, model_type="vit", architectures=["ViTModel"])
    assert "for text generation?" in load_error(folder)


def test_a_device_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="on the device cuda:77: "):
        load_model(FolderModel(folder), "float32", "cuda:77", attention="sdpa")


def test_a_hub_model_is_loaded_at_its_revision(tmp_path: Path) -> None:
    """From a cache laid out as the hub's client does, with two branches; no network."""
    repository = tmp_path / "hub" / "models--org--tiny"
    for branch, commit, seed in (("main", COMMIT, 1), ("v2", COMMIT[::-1], 2)):
        save_tiny_model(repository / "snapshots" / commit, seed=seed)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / branch).write_text(commit)
    code = """
from worker.engine.loading import load_model
from worker.engine.types import HubModel
for repo, revision in (("org/tiny", "main"), ("org/tiny", "v2"), ("org/tiny", "v3"), ("org/none", "main")):
    try:
        loaded = load_model(HubModel(repo, revision), "float64", "cpu", attention="sdpa")
        weights = loaded.model.lm_head.weight
        print(loaded.name, loaded.revision, weights.dtype, weights[0, 0].item())
    except Exception as error:
        print(type(error).__name__, error)
"""
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    main, v2, no_revision, no_repository = run.stdout.splitlines()
    first, second = (
        load_file(repository / "snapshots" / commit / "model.safetensors")["lm_head.weight"][0, 0].item()
        for commit in (COMMIT, COMMIT[::-1])
    )
    assert main == f"org/tiny@main {COMMIT} torch.float64 {first}"
    assert v2 == f"org/tiny@v2 {COMMIT[::-1]} torch.float64 {second}"
    assert first != second
    assert no_revision.startswith("ModelLoadError cannot load the tokenizer of org/tiny@v3: ")
    assert no_repository.startswith("ModelLoadError cannot load the tokenizer of org/none@main: ")
    assert no_repository.endswith("or download it elsewhere and give the pair its folder")
    assert run.stderr == ""
