"""How a prompt and its samples are written: our JSONL, OpenAI's batch output, CSV."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from db.batches import BatchRow
from db.results import ResultRow, SampleRow
from db.tables import TERMINAL_PROMPT, PromptStatus

CSV_COLUMNS = (
    *("custom_id", "status", "sample_index", "text", "finish_reason", "prompt_tokens", "completion_tokens"),
    *("seed", "total_seconds", "mean_acceptance_length", "error_code", "error_message"),
)


def jsonl_line(row: ResultRow) -> dict[str, Any]:
    """A prompt with all that was measured."""
    error = {"code": row.error_code, "message": row.error_message} if row.error_code else None
    return {
        "custom_id": row.custom_id,
        "status": row.status,
        "source": {"path": row.source_path, "line": row.source_line},
        "metadata": row.metadata,
        "samples": [_plain(sample) for sample in row.samples],
        "error": error,
    }


def _plain(sample: SampleRow) -> dict[str, Any]:
    return asdict(sample) | {"created_at": sample.created_at.isoformat()}


def csv_lines(row: ResultRow) -> Iterator[tuple[Any, ...]]:
    """One line a sample; a prompt without any has one, too."""
    for sample in row.samples:
        yield (
            *(row.custom_id, row.status, sample.sample_index, sample.text, sample.finish_reason),
            *(sample.prompt_tokens, sample.completion_tokens, sample.seed, sample.total_seconds),
            *(sample.mean_acceptance_length, row.error_code, row.error_message),
        )
    if not row.samples:
        nothing = (None,) * 8
        yield (row.custom_id, row.status, *nothing, row.error_code, row.error_message)


def openai_line(batch: BatchRow, row: ResultRow) -> dict[str, Any]:
    """A line of the output file where the prompt succeeded, else one of the error file."""
    request = f"{batch.id}-{row.position}"
    line = {"id": f"batch_req_{row.prompt_id}", "custom_id": row.custom_id}
    if row.status == PromptStatus.SUCCEEDED:
        body = _completion(batch, row, request)
        return line | {"response": {"status_code": 200, "request_id": request, "body": body}, "error": None}
    return line | {"response": None, "error": _error(row)}


def _error(row: ResultRow) -> dict[str, Any]:
    if row.status in TERMINAL_PROMPT:
        message = row.error_message or f"This prompt is {row.status}."
        return {"code": row.error_code or f"batch_{row.status}", "message": message}
    return {
        "code": f"batch_{row.status}",
        "message": "The batch has not ended; this prompt has no outcome yet.",
    }


def _logprobs(content: list[Any] | None, chat: bool) -> dict[str, Any] | None:
    """As OpenAI's endpoint of that kind writes them."""
    if content is None:
        return None
    if chat:
        return {"content": content, "refusal": None}
    tokens = [entry["token"] for entry in content]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in entry["top_logprobs"]} for entry in content
        ],
        "text_offset": list(accumulate(map(len, tokens[:-1]), initial=0)) if tokens else [],
    }


def _completion(batch: BatchRow, row: ResultRow, request: str) -> dict[str, Any]:
    chat = row.messages is not None
    choices = [
        {
            "index": sample.sample_index,
            **({"message": {"role": "assistant", "content": sample.text}} if chat else {"text": sample.text}),
            "logprobs": _logprobs(sample.logprobs, chat),
            "finish_reason": sample.finish_reason,
        }
        for sample in row.samples
    ]
    # Of n samples the prompt is read once, and counted once.
    read = max((sample.prompt_tokens for sample in row.samples), default=0)
    written = sum(sample.completion_tokens for sample in row.samples)
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{request}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int((row.ended_at or row.created_at).timestamp()),
        "model": batch.pair,
        "choices": choices,
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }
