"""How one prompt is sampled: the model's, the pair's, the batch's and its own options, and its seed."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from worker.engine.errors import PromptError
from worker.engine.types import Sampling
from worker.wire.formats import regex_of, schema_of
from worker.wire.sampling import NEUTRAL

SEED_MASK = 2**63 - 1  # what a BIGINT column holds
_BITS = 2**64 - 1

# What every option is where nobody says; `seed` and `logprobs` have no such value.
_UNSAID: dict[str, Any] = {
    "temperature": Sampling().temperature,
    "max_tokens": Sampling().max_tokens,
    **NEUTRAL,
}

# `n` is the number of requests a prompt becomes, not a property of one.
OPTIONS = {*_UNSAID, "logprobs", "seed", "n"}


def resolve(defaults: Mapping[str, Any], *given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Every option's value; what is given later wins. `seed` and `logprobs` only where somebody gave one."""
    merged = deepcopy(_UNSAID)
    for options in (defaults, *given):
        merged |= options or {}
    merged["stop"] = list(merged["stop"])
    return merged


def to_engine(resolved: Mapping[str, Any], seed: int) -> Sampling:
    """The engine's form of resolved options. One it cannot honour is refused, never dropped."""
    if unknown := sorted(resolved.keys() - OPTIONS):
        raise PromptError(
            "unsupported_option", f"this worker cannot honour {', '.join(unknown)}: upgrade specmill"
        )
    options = {key: value for key, value in resolved.items() if key not in ("n", "response_format")}
    response_format = resolved["response_format"]
    converted: dict[str, Any] = {
        "seed": seed,
        "stop": tuple(resolved["stop"]),
        "stop_token_ids": tuple(resolved["stop_token_ids"]),
        "logit_bias": tuple((int(token), bias) for token, bias in resolved["logit_bias"].items()),
        "regex": regex_of(response_format),
        "json_schema": schema_of(response_format),
    }
    return Sampling(**options | converted)


def effective_seed(resolved: Mapping[str, Any], batch_seed: int, position: int) -> int:
    """The given seed, else the batch's mixed with the prompt's position.

    The mix is SplitMix64's output function of batch_seed + (position + 1) * 0x9E3779B97F4A7C15 modulo 2**64,
    its top bit dropped. So neighbours get unrelated noise, and a batch run again with its seed repeats.
    """
    given = resolved.get("seed")
    if given is not None:
        return given
    z = (batch_seed + (position + 1) * 0x9E3779B97F4A7C15) & _BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _BITS
    return (z ^ (z >> 31)) & SEED_MASK
