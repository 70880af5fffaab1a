"""Models and tokenizers from the hub, a folder or a package, ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file, extract_commit_hash

from worker.engine.conversion import converted_folder
from worker.engine.errors import EngineError, ModelLoadError, OutOfMemory
from worker.engine.quantizing import check_quantization, loading_arguments
from worker.engine.quiet import quiet
from worker.engine.types import (
    DType,
    FolderModel,
    HubModel,
    ModelSource,
    PackageModel,
    Pair,
    Quantization,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode on its device, with what its files say about using it."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: GenerationConfig
    context_limit: int  # prompt and output together
    eos_ids: frozenset[int]
    revision: str | None  # commit of a hub model, version of a package
    int8: bool = False  # its weights are to be rounded to 8 bits


def load_model(
    source: ModelSource,
    dtype: DType,
    device: str,
    *,
    trust_remote_code: bool = False,
    attention: str = "specmill",
    context_limit: int | None = None,
    quantization: Quantization | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer. `attention` is a name registered with transformers.

    `context_limit` is the pair's own limit, at most the model's; None takes the model's.
    """
    name = name_of(source)
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    config = load_config(source, trust_remote_code=trust_remote_code)
    check_quantization(name, config, quantization, dtype, device)
    placed = loading_arguments(config, quantization, dtype, device)
    model, info = _explained(
        source,
        "model",
        lambda: cast(
            tuple[PreTrainedModel, dict[str, Any]],
            AutoModelForCausalLM.from_pretrained(
                **_location(source),
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
                trust_remote_code=trust_remote_code,
                use_safetensors=True,  # a pickle could run code
                output_loading_info=True,
                **placed,
            ),
        ),
    )
    if missing := sorted(info["missing_keys"]):
        # transformers would only warn, and go on with random weights.
        raise ModelLoadError(
            f"the model {name} is incomplete: {len(missing)} weights are missing, {missing[0]} among them; "
            "download or save it again"
        )
    model.eval().requires_grad_(False)
    if not placed:
        _place(model, device, name)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        generation_config=model.generation_config,
        context_limit=resolve_context_limit(source, model.config, context_limit),
        eos_ids=_eos_ids(model, tokenizer),
        revision=_revision(source),
        int8=quantization == "int8",
    )


def load_config(source: ModelSource, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """A model's config alone, to judge it before its weights are loaded."""
    return _explained(
        source,
        "config",
        lambda: cast(
            PreTrainedConfig,
            AutoConfig.from_pretrained(**_location(source), trust_remote_code=trust_remote_code),
        ),
    )


def resolve_context_limit(source: ModelSource, config: PreTrainedConfig, wanted: int | None) -> int:
    """The pair's limit if it gives one, else the model's own."""
    own = cast(int | None, getattr(config.get_text_config(), "max_position_embeddings", None))
    if own is not None and wanted is not None and wanted > own:
        raise ModelLoadError(
            f"the pair's context_limit is {wanted}, but {name_of(source)} ends at {own} tokens: lower it"
        )
    if limit := wanted or own:
        return limit
    raise ModelLoadError(
        f"the model {name_of(source)} does not say how long its context is: set the pair's context_limit"
    )


def load_tokenizer(source: ModelSource, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    return _explained(
        source,
        "tokenizer",
        lambda: cast(
            PreTrainedTokenizerBase,
            AutoTokenizer.from_pretrained(**_location(source), trust_remote_code=trust_remote_code),
        ),
    )


def name_of(source: ModelSource) -> str:
    """How messages call a model."""
    match source:
        case HubModel(repo, revision):
            return f"{repo}@{revision}"
        case FolderModel(path):
            return str(path)
        case PackageModel(package, file):
            return f"{package}:{file}"


def draft_source(pair: Pair) -> ModelSource | None:
    """The model that a pair drafts with, if its method has one."""
    if pair.method != "draft_model":
        return None
    if pair.draft is None:
        raise EngineError("method draft_model needs a draft model: name one as the pair's `draft`")
    return pair.draft


def _location(source: ModelSource) -> dict[str, Any]:
    """The arguments of `from_pretrained` that say where a model is."""
    match source:
        case HubModel(repo, revision):
            return {"pretrained_model_name_or_path": repo, "revision": revision}
        case FolderModel(path):
            if not (path / "config.json").is_file():
                raise ModelLoadError(
                    f"there is no model in the folder {path}: a folder written by `save_pretrained`, "
                    "with config.json, *.safetensors and the tokenizer's files, was expected"
                )
            return _folder(path)
        case PackageModel():
            return _folder(converted_folder(source))


def _folder(path: Path) -> dict[str, Any]:
    return {"pretrained_model_name_or_path": str(path), "local_files_only": True}


def _explained(source: ModelSource, part: str, load: Callable[[], _T]) -> _T:
    """Run a loader without its chatter, and turn what it raises into one message."""
    try:
        with quiet():
            return load()
    except EngineError:
        raise
    except Exception as error:  # whatever a damaged or foreign file makes its reader raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise ModelLoadError(
            f"cannot load the {part} of {name_of(source)}: {reason}. {_advice(source, str(error))}"
        ) from error


def _place(model: PreTrainedModel, device: str, name: str) -> None:
    try:
        cast(nn.Module, model).to(device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"the weights of {name} do not fit in the memory of {device}: {error}") from error
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelLoadError(
            f"cannot put {name} on the device {device}: {reason}. Choose a device that this machine has"
        ) from error


def _advice(source: ModelSource, reason: str) -> str:
    if "trust_remote_code" in reason:
        return "If you trust that code, set trust_remote_code = true in the pair"
    if "pip install" in reason:
        return "Install it where the worker runs"
    if "safetensors" in reason:
        return "Only safetensors weights are read: convert them, or choose a revision that has them"
    if isinstance(source, HubModel):
        return (
            "Check the name, the revision and the connection to the hub (HF_TOKEN for a gated model), "
            "or download it elsewhere and give the pair its folder"
        )
    return "Was it written by `save_pretrained`, with its tokenizer, for text generation?"


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a text: chat models often have several, spread over three files."""
    declared = (
        model.generation_config.eos_token_id,
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    ids: set[int] = set()
    for value in cast(tuple[int | list[int] | None, ...], declared):
        ids.update([] if value is None else [value] if isinstance(value, int) else value)
    return frozenset(ids)


def _revision(source: ModelSource) -> str | None:
    match source:
        case HubModel(repo, revision):
            return extract_commit_hash(
                cached_file(repo, "config.json", revision=revision, local_files_only=True), None
            )
        case FolderModel():
            return None
        case PackageModel(package):
            distributions = packages_distributions().get(package.partition(".")[0])
            return version(distributions[0]) if distributions else None
