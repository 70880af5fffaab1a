"""Prompts with their samples, for exports and for a look at one of them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, select
from sqlalchemy.orm import aliased

from db.connect import reading
from db.rows import columns
from db.tables import Prompt, Sample

AnySelect = Select[*tuple[Any, ...]]

PAGE = 200  # prompts read at once


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row of `samples`, without its key."""

    sample_index: int
    text: str
    finish_reason: str
    seed: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    total_seconds: float
    method: str
    spec_disabled_reason: str | None
    num_steps: int
    num_spec_steps: int
    num_draft_tokens: int | None
    num_accepted_draft_tokens: int | None
    acceptance_histogram: list[Any] | None
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    rows_in_flight: float
    quality_flag: str | None
    logprobs: list[Any] | None
    attempt: int
    worker_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A prompt and its samples, none where it did not succeed. Of a reused prompt: those of `reused_from`."""

    prompt_id: int
    batch_id: str
    position: int
    custom_id: str
    source_path: str | None
    source_line: int | None
    messages: list[Any] | None
    text: str | None
    chat_template_kwargs: dict[str, Any] | None
    sampling: dict[str, Any] | None
    n: int
    metadata: dict[str, Any] | None
    status: str
    attempt: int
    crashes: int
    created_at: datetime
    ended_at: datetime | None
    reused_from: int | None
    error_code: str | None
    error_message: str | None
    rendered: str | None
    samples: list[SampleRow]


def results(engine: Engine, batch_id: str) -> Iterator[ResultRow]:
    """A batch's rows in order of submission, read in pages.

    Each page is a transaction of its own: a long one would keep SQLite's WAL from being checkpointed.
    """
    last = 0
    while True:
        with reading(engine) as conn:
            page = _load(conn, _prompts(batch_id).where(Prompt.id > last).limit(PAGE))
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].prompt_id


def find_prompt(conn: Connection, batch_id: str, custom_id: str) -> ResultRow | None:
    """One prompt of a batch."""
    rows = _load(conn, _prompts(batch_id).where(Prompt.custom_id == custom_id))
    return rows[0] if rows else None


def _prompts(batch_id: str) -> AnySelect:
    source = aliased(Prompt)
    return (
        select(
            Prompt.id.label("prompt_id"),
            Prompt.batch_id,
            Prompt.position,
            Prompt.custom_id,
            Prompt.source_path,
            Prompt.source_line,
            Prompt.messages,
            Prompt.text,
            Prompt.chat_template_kwargs,
            Prompt.sampling,
            Prompt.n,
            Prompt.metadata_.label("metadata"),
            Prompt.status,
            Prompt.attempt,
            Prompt.crashes,
            Prompt.created_at,
            Prompt.ended_at,
            Prompt.reused_from,
            Prompt.error_code,
            Prompt.error_message,
            func.coalesce(Prompt.rendered, source.rendered).label("rendered"),
        )
        .outerjoin(source, source.id == Prompt.reused_from)
        .where(Prompt.batch_id == batch_id)
        .order_by(Prompt.id)
    )


def _load(conn: Connection, prompts_query: AnySelect) -> Sequence[ResultRow]:
    prompts = conn.execute(prompts_query).all()
    holders = [row.reused_from or row.prompt_id for row in prompts]
    samples: defaultdict[int, list[SampleRow]] = defaultdict(list)
    query = select(Sample.prompt_id, *columns(Sample, SampleRow))
    for row in conn.execute(
        query.where(Sample.prompt_id.in_(holders)).order_by(Sample.prompt_id, Sample.sample_index)
    ):
        samples[row[0]].append(SampleRow(*row[1 : len(row)]))
    return [ResultRow(*row, samples=samples[holder]) for row, holder in zip(prompts, holders, strict=True)]
