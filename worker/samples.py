"""A finished generation as the columns of its row in `samples`."""

from typing import Any

from db.acceptance import acceptance_columns
from worker.engine.types import Generation, TokenLogprob
from worker.quality import quality_flag

LEAST_LOGPROB = -9999.0  # OpenAI's word for impossible: JSON has no infinity


def to_columns(generation: Generation, seed: int, waited_seconds: float) -> dict[str, Any]:
    """`waited_seconds`: from the prompt's submission until the engine was given it."""
    queue_seconds = waited_seconds + generation.waited_seconds
    return {
        "sample_index": generation.sample_index,
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "seed": seed,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "cached_tokens": generation.cached_tokens,
        "queue_seconds": queue_seconds,
        "prefill_seconds": generation.prefill_seconds,
        "first_token_seconds": generation.first_token_seconds,
        "decode_seconds": generation.decode_seconds,
        "total_seconds": queue_seconds + generation.first_token_seconds + generation.decode_seconds,
        "method": generation.method,
        "spec_disabled_reason": generation.spec_disabled_reason,
        "num_steps": generation.num_steps,
        "num_spec_steps": generation.num_spec_steps,
        "rows_in_flight": generation.rows_in_flight,
        "quality_flag": quality_flag(generation),
        "logprobs": _content(generation),
        **acceptance_columns(
            generation.num_draft_tokens,
            generation.num_accepted_draft_tokens,
            generation.num_spec_steps,
            generation.acceptance_histogram,
        ),
    }


def _content(generation: Generation) -> list[dict[str, Any]] | None:
    """As OpenAI's `logprobs.content`, one entry for each token counted: EOS and a stop string's included."""
    if generation.logprobs is None:
        return None
    return [
        _entry(emitted) | {"top_logprobs": [_entry(other) for other in emitted.alternatives]}
        for emitted in generation.logprobs
    ]


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.spelling.decode(errors="replace"),
        "logprob": max(token.logprob, LEAST_LOGPROB),
        "bytes": list(token.spelling),
    }
