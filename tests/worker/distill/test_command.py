"""`worker distill`: from prompts to a drafter that a pair can name, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from tests.worker.engine.tiny import save_tiny_model
from worker.cli import main
from worker.engine import Engine, FolderModel, Pair
from worker.engine.types import Sampling

Distill = Callable[..., tuple[int, str, str]]

BRIEF = ("--tokens", "900", "--max-tokens", "10", "--gamma", "3", "--draft-vocab", "200", "--epochs", "1")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("distilled") / "target", layers=4)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"the other thing {number}", "kind": f"kind {number % 2}"} for number in range(150)]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


@pytest.fixture
def distill(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distill:
    toml = tmp_path / "specmill.toml"
    toml.write_text(f'[pairs.tiny]\ntarget = {{ folder = "{target}" }}\ndtype = "float32"\nmax_rows = 4\n')
    monkeypatch.setenv("SPECMILL_CONFIG", str(toml))

    def distill(*options: str) -> tuple[int, str, str]:
        given = ["distill", "--pair", "tiny", *options]
        result = CliRunner().invoke(main, given)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return distill


def test_prompts_become_a_drafter(distill: Distill, prompts: Path, target: Path, tmp_path: Path) -> None:
    output = tmp_path / "drafter"
    code, card, progress = distill("--prompts", str(prompts), "--output", str(output), *BRIEF)
    assert code == 0, progress
    assert "min left" in progress
    assert "tau" in progress
    assert (output / "README.md").read_text() == card[:-1]
    for said in ("this drafter | 3", "mixed", "prompt lookup alone", "By the clock", "does not help"):
        assert said in card
    assert (output / "training.png").stat().st_size > 1000

    pair = Pair(FolderModel(target), "dspark", FolderModel(output), gamma=3, dtype="float32")
    plain = Pair(FolderModel(target), "none", dtype="float32")
    sampling = Sampling(max_tokens=12)
    drafted = Engine(pair).generate(["the other"], sampling)[0]
    assert drafted.token_ids == Engine(plain).generate(["the other"], sampling)[0].token_ids
    assert drafted.spec_disabled_reason is None

    size = (output / "model.safetensors").read_bytes()
    code, _, progress = distill("--prompts", str(prompts), "--output", str(output), *BRIEF)
    assert code == 0
    assert "continuing after" in progress
    assert "capture:" not in progress
    assert (output / "model.safetensors").read_bytes() == size


def test_a_drafter_learns_more(distill: Distill, prompts: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    code, card, progress = distill("--prompts", str(prompts), "--output", str(first), *BRIEF)
    assert code == 0, progress
    assert "Seed 0." in card
    taken = ("--tokens", "900", "--max-tokens", "10", "--epochs", "2", "--begin-from", str(first))
    code, card, progress = distill("--prompts", str(prompts), "--output", str(second), *taken)
    assert code == 0, progress
    assert f"Begun as the drafter {first}" in card
    assert "AdamW 0.0004" in card
    assert "Seed 0." not in card  # the texts come in another order than before
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (first, second))
    assert before == after
    old, new = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert torch.equal(old["d2t"], new["d2t"])
    assert not torch.equal(old["fc.weight"], new["fc.weight"])


def test_a_drafter_that_learns_more_may_get_more_tokens_but_never_fewer(
    distill: Distill, prompts: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    code, _, progress = distill("--prompts", str(prompts), "--output", str(first), *BRIEF)
    assert code == 0, progress
    taken = ("--tokens", "900", "--max-tokens", "10", "--epochs", "1", "--begin-from", str(first))
    code, card, progress = distill(
        "--prompts", str(prompts), "--output", str(second), *taken, "--draft-vocab", "230"
    )
    assert code == 0, progress
    assert "230 of the target's" in card
    before, after = (load_file(folder / "model.safetensors")["d2t"] for folder in (first, second))
    assert len(before) == 200
    assert set(_ids(before)) < set(_ids(after))
    code, _, error = distill("--prompts", str(prompts), "--output", str(second), *taken, "--draft-vocab", "9")
    assert code == 2
    assert "can propose 200 tokens, and --draft-vocab is 9" in error


def _ids(d2t: torch.Tensor) -> list[int]:
    return (d2t + torch.arange(len(d2t))).tolist()


def test_a_drafter_that_learns_more_keeps_its_gamma(distill: Distill, prompts: Path, tmp_path: Path) -> None:
    options = ("--prompts", str(prompts), "--output", str(tmp_path / "out"), "--begin-from", str(tmp_path))
    code, _, error = distill(*options, "--gamma", "2")
    assert code == 2
    assert "with --begin-from it keeps what it has" in error


@pytest.mark.parametrize(
    ("other", "is_begun", "why"),
    [
        pytest.param({"layers": 3}, True, "was trained for", id="a drafter of another target"),
        pytest.param({"kind": "lfm2", "layers": 4}, False, "cannot begin as their copy", id="other layers"),
    ],
)
def test_what_cannot_be_begun_is_said_before_anything_is_captured(
    distill: Distill,
    prompts: Path,
    target: Path,
    tmp_path: Path,
    other: dict[str, Any],
    is_begun: bool,
    why: str,
) -> None:
    first, output = tmp_path / "first", tmp_path / "output"
    options = ("--prompts", str(prompts), "--output")
    if is_begun:
        code, _, progress = distill(*options, str(first), *BRIEF)
        assert code == 0, progress
    toml = tmp_path / "specmill.toml"
    toml.write_text(toml.read_text().replace(str(target), str(save_tiny_model(tmp_path / "other", **other))))
    code, _, error = distill(*options, str(output), *(("--begin-from", str(first)) if is_begun else ()))
    assert code == 2
    assert why in error
    assert not output.exists()


def test_a_folder_is_of_one_recipe(distill: Distill, prompts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "drafter" / "capture"
    folder.mkdir(parents=True)
    recipe = {"target": "another", "taps": [1], "max_tokens": 10, "prompts": 150, "prompts_crc": 1}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    code, _, error = distill("--prompts", str(prompts), "--output", str(tmp_path / "drafter"), *BRIEF)
    assert code == 2
    assert "holds what was captured with target 'another'" in error
    assert "name another --output" in error


def test_too_few_prompts_are_refused(distill: Distill, tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    code, _, error = distill("--prompts", str(file), "--output", str(tmp_path / "drafter"), *BRIEF)
    assert code == 2
    assert "2 responses are to learn from and 0 are held out" in error


@pytest.mark.parametrize("source", [(), ("--prompts", "p.jsonl", "--from-batch", "b")])
def test_one_source_of_prompts_is_needed(distill: Distill, source: tuple[str, ...]) -> None:
    code, _, error = distill(*source, "--output", "drafter")
    assert code == 2
    assert "either --prompts FILE or --from-batch ID" in error
