"""Models and tokenizers from the hub, a folder or a package, ready to run."""

from contextlib import contextmanager
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import huggingface_hub.utils as hub_utils
import torch
import transformers.utils.logging as transformers_logging
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase

from worker.engine.conversion import converted_folder
from worker.engine.errors import ModelLoadError
from worker.engine.types import DType, FolderModel, HubModel, ModelSource, PackageModel


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode on its device, with what its files say about using it."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: GenerationConfig
    context_limit: int
    eos_ids: frozenset[int]
    revision: str | None  # commit of a hub model, version of a package


def load_model(
    source: ModelSource,
    dtype: DType,
    device: str,
    *,
    trust_remote_code: bool = False,
    attention: str = "specmill",
    context_limit: int | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer; `attention` is a name registered with transformers."""
    raise NotImplementedError


def load_tokenizer(source: ModelSource, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    raise NotImplementedError


def name_of(source: ModelSource) -> str:
    """How messages call a model."""
    match source:
        case HubModel(repo, revision):
            return f"{repo}@{revision}"
        case FolderModel(path):
            return str(path)
        case PackageModel(package, file):
            return f"{package}:{file}"
