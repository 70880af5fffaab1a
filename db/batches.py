"""The submission side: batches and their prompts, written once and found again."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy import delete as sql_delete

from db.clock import now
from db.ending import end_batches
from db.errors import BatchInUse, UnknownBatch
from db.rows import columns
from db.tables import Batch, BatchStatus, Prompt, PromptStatus

CHUNK = 1000  # rows a statement: below SQLite's 32,766 and PostgreSQL's 65,535 variables
HUGE = 10_000  # prompts


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A submission, before its prompts. `completion_window` counts from now and gives the deadline."""

    name: str | None
    source_key: str
    pair: str
    pair_fingerprint: str
    sampling: dict[str, Any]
    metadata: dict[str, Any]
    priority: int
    deadline: datetime | None
    completion_window: timedelta | None
    seed: int


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """One row of work as it was submitted: `messages` or `text`, not both."""

    custom_id: str
    source_path: str | None
    source_line: int | None
    messages: list[Any] | None
    text: str | None
    chat_template_kwargs: dict[str, Any] | None
    sampling: dict[str, Any] | None
    n: int
    metadata: dict[str, Any] | None
    content_key: str


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of `batches`."""

    id: str
    name: str | None
    source_key: str
    pair: str
    pair_fingerprint: str
    sampling: dict[str, Any]
    sampling_resolved: dict[str, Any] | None
    seed: int
    metadata: dict[str, Any]
    priority: int
    status: str
    input_errors: list[Any]
    num_input_errors: int
    speedup_vs_baseline: float | None
    speedup_low: float | None
    speedup_high: float | None
    deadline: datetime | None
    created_at: datetime
    sealed_at: datetime | None
    paused_at: datetime | None
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Match:
    """A prompt of an earlier batch under the same custom_id."""

    prompt_id: int
    status: str
    same_content: bool


def create(conn: Connection, batch: NewBatch) -> str:
    """Open a batch for its prompts; nothing of it is claimable until `seal`."""
    time = now(conn)
    deadline = batch.deadline
    if deadline is None and batch.completion_window is not None:
        deadline = time + batch.completion_window
    batch_id = f"batch_{int(time.timestamp() * 1000):012x}{secrets.token_hex(6)}"
    values: dict[str, Any] = {
        "id": batch_id,
        "name": batch.name,
        "source_key": batch.source_key,
        "pair": batch.pair,
        "pair_fingerprint": batch.pair_fingerprint,
        "sampling": batch.sampling,
        "seed": batch.seed,
        "metadata": batch.metadata,
        "priority": batch.priority,
        "status": BatchStatus.VALIDATING,
        "input_errors": [],
        "num_input_errors": 0,
        "deadline": deadline,
        "created_at": time,
    }
    conn.execute(insert(Batch).values(values))
    return batch_id


def add_prompts(
    conn: Connection,
    batch_id: str,
    first_position: int,
    prompts: Sequence[NewPrompt],
    previous_batch: str | None = None,
) -> int:
    """Store prompts in order. Those `previous_batch` has answered already succeed at once: how many did."""
    time = now(conn)
    answered = _answered(conn, previous_batch, prompts) if previous_batch else {}
    rows: list[dict[str, Any]] = []
    reused = 0
    for position, prompt in enumerate(prompts, first_position):
        source = answered.get((prompt.custom_id, prompt.content_key))
        reused += source is not None
        rows.append(
            {
                "batch_id": batch_id,
                "position": position,
                "custom_id": prompt.custom_id,
                "source_path": prompt.source_path,
                "source_line": prompt.source_line,
                "messages": prompt.messages,
                "text": prompt.text,
                "chat_template_kwargs": prompt.chat_template_kwargs,
                "sampling": prompt.sampling,
                "n": prompt.n,
                "metadata": prompt.metadata,
                "content_key": prompt.content_key,
                "status": PromptStatus.PENDING if source is None else PromptStatus.SUCCEEDED,
                "attempt": 0,
                "crashes": 0,
                "created_at": time,
                "ended_at": None if source is None else time,
                "reused_from": source,
            }
        )
    if rows:
        conn.execute(insert(Prompt), rows)
    return reused


def _answered(conn: Connection, batch_id: str, prompts: Sequence[NewPrompt]) -> dict[tuple[str, str], int]:
    """(custom_id, content_key) -> the prompt that holds the samples."""
    found: dict[tuple[str, str], int] = {}
    for start in range(0, len(prompts), CHUNK):
        names = [prompt.custom_id for prompt in prompts[start : start + CHUNK]]
        query = select(
            Prompt.custom_id, Prompt.content_key, func.coalesce(Prompt.reused_from, Prompt.id)
        ).where(
            Prompt.batch_id == batch_id,
            Prompt.status == PromptStatus.SUCCEEDED,
            Prompt.custom_id.in_(names),
        )
        for custom_id, content_key, root in conn.execute(query):
            found[custom_id, content_key] = root
    return found


def seal(conn: Connection, batch_id: str, input_errors: Sequence[Any], num_input_errors: int) -> None:
    """The last prompt is in: from now on they are claimable. A batch with nothing left to do ends here."""
    time = now(conn)
    conn.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == BatchStatus.VALIDATING)
        .values(
            status=BatchStatus.IN_PROGRESS,
            sealed_at=time,
            in_progress_at=time,
            input_errors=list(input_errors),
            num_input_errors=num_input_errors,
        )
    )
    end_batches(conn, batch_id)
    _tell_the_planner(conn, batch_id)


def _tell_the_planner(conn: Connection, batch_id: str) -> None:
    """PostgreSQL plans for a handful of rows until it has looked at a huge batch."""
    if conn.dialect.name == "postgresql":
        last = conn.execute(select(func.max(Prompt.position)).where(Prompt.batch_id == batch_id)).scalar()
        if last is not None and last >= HUGE:
            conn.execute(text("ANALYZE prompts"))


def find_latest(conn: Connection, source_key: str) -> BatchRow | None:
    """The newest batch that was submitted from the same source for the same pair."""
    query = select(*columns(Batch, BatchRow)).where(Batch.source_key == source_key)
    row = conn.execute(query.order_by(Batch.created_at.desc(), Batch.id.desc()).limit(1)).first()
    return None if row is None else BatchRow(*row)


def list_recent(conn: Connection, limit: int) -> Sequence[BatchRow]:
    """The newest batches, newest first."""
    query = select(*columns(Batch, BatchRow)).order_by(Batch.created_at.desc(), Batch.id.desc()).limit(limit)
    return [BatchRow(*row) for row in conn.execute(query)]


def get(conn: Connection, reference: str) -> BatchRow:
    """The batch with that id, else the newest with that name, else the only one whose id begins so."""
    newest = select(*columns(Batch, BatchRow)).order_by(Batch.created_at.desc(), Batch.id.desc())
    for query in (newest.where(Batch.id == reference), newest.where(Batch.name == reference)):
        if row := conn.execute(query.limit(1)).first():
            return BatchRow(*row)
    prefix = reference if reference.startswith("batch_") else f"batch_{reference}"
    rows = conn.execute(newest.where(Batch.id.startswith(prefix, autoescape=True)).limit(6)).all()
    if reference and len(rows) == 1:
        return BatchRow(*rows[0])
    raise UnknownBatch(_which_batches(conn, reference, [BatchRow(*row) for row in rows]))


def _which_batches(conn: Connection, reference: str, found: Sequence[BatchRow]) -> str:
    if found and reference:
        message = f"{reference!r} begins the ids of several batches:"
    else:
        message = f"No batch has the id, name or id prefix {reference!r}."
        found = list_recent(conn, 5)
        message += " Recent batches:" if found else " There are no batches yet: producer submit PATH"
    lines = [f"  {row.id}  {row.name or '-'}  {row.status}" for row in found]
    return "\n".join([message, *lines])


def delete(conn: Connection, batch_id: str) -> None:
    """Remove a batch with its prompts and samples, unless another batch reuses them."""
    own = select(Prompt.id).where(Prompt.batch_id == batch_id)
    user = conn.execute(
        select(Prompt.batch_id).where(Prompt.reused_from.in_(own), Prompt.batch_id != batch_id).limit(1)
    ).scalar()
    if user is not None:
        raise BatchInUse(f"{batch_id} cannot be deleted: {user} reuses its results. Delete that one first.")
    conn.execute(sql_delete(Batch).where(Batch.id == batch_id))


def match_prompts(conn: Connection, batch_id: str, prompts: Sequence[tuple[str, str]]) -> dict[str, Match]:
    """For (custom_id, content_key) pairs: what that batch knows under the same custom_id."""
    keys = dict(prompts)
    names = list(keys)
    found: dict[str, Match] = {}
    for start in range(0, len(names), CHUNK):
        query = select(Prompt.id, Prompt.custom_id, Prompt.status, Prompt.content_key).where(
            Prompt.batch_id == batch_id, Prompt.custom_id.in_(names[start : start + CHUNK])
        )
        for prompt_id, custom_id, status, content_key in conn.execute(query):
            found[custom_id] = Match(prompt_id, status, content_key == keys[custom_id])
    return found


def first_location(conn: Connection, batch_id: str, custom_id: str) -> tuple[str | None, int | None] | None:
    """Path and line of the prompt that has this custom_id."""
    row = conn.execute(
        select(Prompt.source_path, Prompt.source_line).where(
            Prompt.batch_id == batch_id, Prompt.custom_id == custom_id
        )
    ).one_or_none()
    return None if row is None else (row[0], row[1])
