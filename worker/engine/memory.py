"""Whether a pair fits in memory: the weights of its models and the KV cache, whose size is limited.

Computed from the models' configs alone, so that a pair too large is refused before it is loaded.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from worker.engine.convolution import is_short_convolution, width_of
from worker.engine.dspark.loading import describe_drafter
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.errors import EngineError, OutOfMemory
from worker.engine.loading import draft_source, load_config, name_of, resolve_context_limit
from worker.engine.quantizing import check_quantization, weight_bytes
from worker.engine.types import ModelSource, Pair

_GIB = 2**30
_UNITS = {"MiB": 2**20, "GiB": _GIB}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|MiB|GiB)")
# Of a GPU's memory, left to what passes compute: activations, logits, graphs.
_SHARE_OF_PASSES = 0.1


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes a pair needs: its weights, and what its caches may grow to and never exceed."""

    target_weights: int
    target_cache: int
    draft_weights: int
    draft_cache: int
    cached_tokens: int  # that the target's cache has room for, of all rows together

    @property
    def total(self) -> int:
        return self.target_weights + self.target_cache + self.draft_weights + self.draft_cache


def check_fits(pair: Pair, available: int | None = None) -> MemoryEstimate:
    """What the pair needs, from its models' configs and without their weights.

    Raises OutOfMemory, with the numbers and what to change, if weights or a row at full length do not fit.
    """
    free = available_memory(pair.device) if available is None else available
    target = _measure(pair.target, pair, pair.context_limit)
    draft = _Needs(0, 0, 0)
    if draft_model := draft_source(pair):
        draft = _measure(draft_model, pair, None)
    elif pair.method == "dspark":
        draft = _measure_drafter(pair, target.context_limit)
    weights = target.weights + draft.weights
    limit = _cache_limit(pair.kv_cache, max(0, free - weights))
    tokens = min(
        pair.max_rows * target.context_limit, limit // (target.cache_per_token + draft.cache_per_token)
    )
    draft_tokens = min(tokens, pair.max_rows * draft.context_limit)
    needed = MemoryEstimate(
        target_weights=target.weights,
        target_cache=tokens * target.cache_per_token,
        draft_weights=draft.weights,
        draft_cache=draft_tokens * draft.cache_per_token,
        cached_tokens=tokens,
    )
    if weights > free:
        advice = "use a smaller model, or a dtype of 16 bits or quantization if the pair has none"
    elif tokens < target.context_limit:
        advice = (
            f"that is {tokens} tokens, and one row may have {target.context_limit}: raise kv_cache of the "
            f'pair (now "{pair.kv_cache}") or lower its context_limit to at most {tokens}'
        )
    elif needed.total > free:
        advice = f'lower kv_cache of the pair (now "{pair.kv_cache}")'
    else:
        return needed
    raise OutOfMemory(
        f"the pair does not fit in the memory of {pair.device}: {_gib(free)} are free "
        f"(weights of {name_of(pair.target)} {_gib(target.weights)}"
        + (f", of the draft model {_gib(draft.weights)}" if draft.weights else "")
        + f", KV cache at most {_gib(limit)}): {advice}"
    )


def available_memory(device: str) -> int:
    """Bytes of a device that weights and caches may take; a container's limit counts as the machine's."""
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            raise EngineError(f"there is no {device} here: torch {torch.__version__} sees no CUDA device")
        free, total = torch.cuda.mem_get_info(device)
        return max(0, free - int(_SHARE_OF_PASSES * total))
    return min(psutil.virtual_memory().available, _left_in_container())


def _cache_limit(size: str, left: int) -> int:
    """Bytes of "50%" of what the weights leave, or of "4GiB" or "512MiB"."""
    parts = _SIZE.fullmatch(size)
    if parts is None:
        raise EngineError(f'kv_cache is "{size}": a share or a size was expected, as "50%" or "4GiB"')
    number, unit = float(parts[1]), parts[2]
    return int(left * min(number, 100) / 100 if unit == "%" else number * _UNITS[unit])


@dataclass(frozen=True, slots=True)
class _Needs:
    """Of one model, in bytes."""

    weights: int
    cache_per_token: int
    context_limit: int


def _measure(source: ModelSource, pair: Pair, context_limit: int | None) -> _Needs:
    config = load_config(source, trust_remote_code=pair.trust_remote_code)
    check_quantization(name_of(source), config, pair.quantization, pair.dtype, pair.device)
    with torch.device("meta"):  # shapes without memory
        model = cast(
            PreTrainedModel,
            AutoModelForCausalLM.from_config(config, trust_remote_code=pair.trust_remote_code),
        )
    width = cast(int, getattr(torch, pair.dtype).itemsize)
    text = cast(Any, config.get_text_config())
    heads = cast(int, getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
    head_dim = cast(int, getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    convolutions = [width_of(module) for module in model.modules() if is_short_convolution(module)]
    attending = cast(int, text.num_hidden_layers) - len(convolutions)
    return _Needs(
        weights=weight_bytes(model, pair.quantization, width),
        cache_per_token=(2 * attending * heads * head_dim + sum(convolutions)) * width,
        context_limit=resolve_context_limit(source, config, context_limit),
    )


def _measure_drafter(pair: Pair, context_limit: int) -> _Needs:
    """The embeddings are the target's, and so is the head unless only some of its rows are taken."""
    config = describe_drafter(pair)
    with torch.device("meta"):
        network = DSparkNetwork(config)
    shared = network.embed_tokens.weight.numel()
    if config.draft_vocab_size == config.vocab_size:
        shared += network.lm_head.weight.numel()
    width = cast(int, getattr(torch, pair.dtype).itemsize)
    return _Needs(
        weights=(sum(parameter.numel() for parameter in network.parameters()) - shared) * width,
        cache_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * width,
        context_limit=context_limit,
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
