"""Whether a pair fits in memory: the weights of its models and the KV cache of every row at full length.

Computed from the models' configs alone, so that a pair too large is refused before it is loaded.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from worker.engine.errors import EngineError, OutOfMemory
from worker.engine.loading import draft_source, load_config, name_of, resolve_context_limit
from worker.engine.types import ModelSource, Pair

_GIB = 2**30
# Of a GPU's memory, left to what passes compute: activations, logits, graphs.
_SHARE_OF_PASSES = 0.1


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes a pair needs when all its rows are as long as they may be."""

    target_weights: int
    target_cache: int
    draft_weights: int
    draft_cache: int
    max_rows: int
    context_limit: int

    @property
    def total(self) -> int:
        return self.target_weights + self.target_cache + self.draft_weights + self.draft_cache


def estimate(pair: Pair) -> MemoryEstimate:
    """What the pair needs, from its models' configs and without their weights."""
    target = _measure(pair.target, pair, pair.context_limit)
    draft_model = draft_source(pair)
    draft = _measure(draft_model, pair, None) if draft_model else _Needs(0, 0, 0)
    return MemoryEstimate(
        target_weights=target.weights,
        target_cache=pair.max_rows * target.context_limit * target.cache_per_token,
        draft_weights=draft.weights,
        draft_cache=pair.max_rows * min(draft.context_limit, target.context_limit) * draft.cache_per_token,
        max_rows=pair.max_rows,
        context_limit=target.context_limit,
    )


def available_memory(device: str) -> int:
    """Bytes of a device that weights and caches may take; a container's limit counts as the machine's."""
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            raise EngineError(f"there is no {device} here: torch {torch.__version__} sees no CUDA device")
        free, total = torch.cuda.mem_get_info(device)
        return max(0, free - int(_SHARE_OF_PASSES * total))
    return min(psutil.virtual_memory().available, _left_in_container())


def check_fits(pair: Pair, available: int | None = None) -> MemoryEstimate:
    """Raise OutOfMemory, with the numbers and what to reduce, if the pair does not fit in what is free."""
    needed = estimate(pair)
    free = available_memory(pair.device) if available is None else available
    if needed.total <= free:
        return needed
    cache = needed.target_cache + needed.draft_cache
    weights = needed.target_weights + needed.draft_weights
    if weights > free:
        advice = "use a smaller model or, if it is not one already, a dtype of 16 bits"
    else:
        tokens = (free - weights) * needed.max_rows * needed.context_limit // cache
        advice = (
            f"lower max_rows or context_limit of the pair until their product is at most {tokens} "
            f"(now {needed.max_rows} rows x {needed.context_limit} tokens)"
        )
    raise OutOfMemory(
        f"the pair does not fit in the memory of {pair.device}: it needs {_gib(needed.total)} "
        f"(weights of {name_of(pair.target)} {_gib(needed.target_weights)}"
        + (f", of the draft model {_gib(needed.draft_weights)}" if needed.draft_weights else "")
        + f", KV cache {_gib(cache)}) and {_gib(free)} are free: {advice}"
    )


@dataclass(frozen=True, slots=True)
class _Needs:
    """Of one model, in bytes."""

    weights: int
    cache_per_token: int
    context_limit: int


def _measure(source: ModelSource, pair: Pair, context_limit: int | None) -> _Needs:
    config = load_config(source, trust_remote_code=pair.trust_remote_code)
    with torch.device("meta"):  # shapes without memory
        model = cast(
            PreTrainedModel,
            AutoModelForCausalLM.from_config(config, trust_remote_code=pair.trust_remote_code),
        )
    width = cast(int, getattr(torch, pair.dtype).itemsize)
    text = cast(Any, config.get_text_config())
    heads = cast(int, getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
    head_dim = cast(int, getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    return _Needs(
        weights=sum(parameter.numel() for parameter in model.parameters()) * width,
        cache_per_token=2 * cast(int, text.num_hidden_layers) * heads * head_dim * width,
        context_limit=resolve_context_limit(source, config, context_limit),
    )


def _left_in_container() -> int:
    """What a cgroup's limit leaves, file pages that can be dropped not counted as used."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return sys.maxsize if limit == "max" else int(limit) - used + int(statistics["inactive_file"])
    except (OSError, ValueError, KeyError):  # no limit is known
        return sys.maxsize


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
