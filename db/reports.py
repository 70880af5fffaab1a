"""What a batch came to. Tokens are this batch's own; what it reused from earlier batches is counted apart."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVarTuple

from sqlalchemy import Connection, Select, func, select

from db.acceptance import acceptance_length, acceptance_rate, is_garbled
from db.batches import BatchRow, get
from db.clock import now
from db.counts import counts_by_status
from db.flags import FlaggedGroup, flagged
from db.speedups import block_speedups
from db.tables import OPEN_BATCH, TERMINAL_PROMPT, Prompt, PromptStatus, Sample, Worker

EXAMPLES = 3  # failed prompts shown for each error code
SLOWEST = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is, cheap enough to be asked for every second."""

    batch_id: str
    status: str
    paused: bool
    prompts: dict[str, int]  # by status, every status named
    completion_tokens: int  # generated so far, reused ones not counted
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    elapsed_seconds: float  # sealed until now, or until its end

    @property
    def total(self) -> int:
        return sum(self.prompts.values())

    @property
    def done(self) -> int:
        """Prompts that have ended, one way or another."""
        return sum(self.prompts[status] for status in TERMINAL_PROMPT)

    @property
    def ended(self) -> bool:
        return self.status not in OPEN_BATCH

    @property
    def acceptance_length(self) -> float | None:
        return acceptance_length(self.num_accepted_draft_tokens, self.num_spec_steps)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, exact: interpolated between neighbours, as PostgreSQL's percentile_cont."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Reused:
    """What earlier batches had generated already."""

    prompts: int
    samples: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class DrafterTotals:
    """What one drafter did in this batch; None where it drafted nothing."""

    method: str
    samples: int
    completion_tokens: int
    num_steps: int
    num_spec_steps: int
    num_draft_tokens: int | None
    num_accepted_draft_tokens: int | None
    acceptance_length: float | None
    acceptance_rate: float | None
    garbled: bool  # a drafting model that was almost never right, over all rows


@dataclass(frozen=True, slots=True)
class FailedPrompt:
    custom_id: str
    source_path: str | None
    source_line: int | None
    message: str | None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Prompts that failed with the same code, the first of them as examples."""

    code: str
    prompts: int
    examples: list[FailedPrompt]


@dataclass(frozen=True, slots=True)
class SlowPrompt:
    custom_id: str
    generation_seconds: float
    queue_seconds: float
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class WorkerShare:
    worker_id: str
    host: str
    device: str
    device_name: str
    prompts: int
    samples: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """A batch's results in numbers. `dataclasses.asdict` of it is JSON."""

    batch_id: str
    name: str | None
    pair: str
    pair_fingerprint: str
    status: str
    paused: bool
    sampling: dict[str, Any]  # as resolved by the worker, else as given
    created_at: str
    ended_at: str | None
    prompts: dict[str, int]  # by status, every status named
    total_prompts: int
    num_input_errors: int
    input_errors: list[Any]  # capped at submit
    samples: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reused: Reused
    wall_seconds: float  # sealed until the end, or until now
    tokens_per_second: float | None
    queue_seconds: Percentiles | None
    first_token_seconds: Percentiles | None
    generation_seconds: Percentiles | None
    drafters: list[DrafterTotals]
    speedup_vs_baseline: float | None  # measured by plain steps within the job
    speedup_low: float | None
    speedup_high: float | None
    speedup_blocks: int  # of plain steps
    spec_disabled: dict[str, int]  # samples, by the reason why speculation was off
    finish_reasons: dict[str, int]
    flagged: list[FlaggedGroup]
    failures: list[FailureGroup]
    slowest: list[SlowPrompt]
    workers: list[WorkerShare]


Columns = TypeVarTuple("Columns")

GENERATION_SECONDS = Sample.total_seconds - Sample.queue_seconds


def progress(conn: Connection, batch_id: str) -> Progress:
    """Counts and sums of a batch, as of now."""
    batch = get(conn, batch_id)
    sums = conn.execute(
        _of(
            batch_id,
            select(
                func.coalesce(func.sum(Sample.completion_tokens), 0),
                func.coalesce(func.sum(Sample.num_accepted_draft_tokens), 0),
                func.coalesce(func.sum(Sample.num_draft_tokens), 0),
                func.coalesce(func.sum(Sample.num_spec_steps), 0),
            ),
        )
    ).one()
    completion_tokens, accepted, drafted, spec_steps = (int(value) for value in sums)
    return Progress(
        batch_id=batch_id,
        status=batch.status,
        paused=batch.paused_at is not None,
        prompts=counts_by_status(conn, [batch_id])[batch_id],
        completion_tokens=completion_tokens,
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=drafted,
        num_spec_steps=spec_steps,
        elapsed_seconds=_elapsed(conn, batch),
    )


def report(conn: Connection, batch_id: str) -> Report:
    """Everything `producer report` shows."""
    batch = get(conn, batch_id)
    counts = counts_by_status(conn, [batch_id])[batch_id]
    totals = conn.execute(
        _of(
            batch_id,
            select(
                func.count(),
                func.coalesce(func.sum(Sample.prompt_tokens), 0),
                func.coalesce(func.sum(Sample.cached_tokens), 0),
                func.coalesce(func.sum(Sample.completion_tokens), 0),
            ),
        )
    ).one()
    samples, prompt_tokens, cached_tokens, completion_tokens = (int(value) for value in totals)
    wall = _elapsed(conn, batch)
    queue, first_token, generation = _percentiles(conn, batch_id)
    ended_at = _ended_at(batch)
    return Report(
        batch_id=batch_id,
        name=batch.name,
        pair=batch.pair,
        pair_fingerprint=batch.pair_fingerprint,
        status=batch.status,
        paused=batch.paused_at is not None,
        sampling=batch.sampling if batch.sampling_resolved is None else batch.sampling_resolved,
        created_at=batch.created_at.isoformat(),
        ended_at=None if ended_at is None else ended_at.isoformat(),
        prompts=counts,
        total_prompts=sum(counts.values()),
        num_input_errors=batch.num_input_errors,
        input_errors=batch.input_errors,
        samples=samples,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        reused=_reused(conn, batch_id),
        wall_seconds=wall,
        tokens_per_second=completion_tokens / wall if completion_tokens and wall else None,
        queue_seconds=queue,
        first_token_seconds=first_token,
        generation_seconds=generation,
        drafters=_drafters(conn, batch_id),
        speedup_vs_baseline=batch.speedup_vs_baseline,
        speedup_low=batch.speedup_low,
        speedup_high=batch.speedup_high,
        speedup_blocks=len(block_speedups(conn, batch_id)),
        spec_disabled=_count_by(conn, batch_id, Sample.spec_disabled_reason),
        finish_reasons=_count_by(conn, batch_id, Sample.finish_reason),
        flagged=flagged(conn, batch_id),
        failures=_failures(conn, batch_id),
        slowest=_slowest(conn, batch_id),
        workers=_workers(conn, batch_id),
    )


def _of(batch_id: str, query: Select[*Columns]) -> Select[*Columns]:
    """Only samples that this batch generated: a reused prompt has none of its own."""
    return (
        query.select_from(Prompt)
        .join(Sample, Sample.prompt_id == Prompt.id)
        .where(Prompt.batch_id == batch_id)
    )


def _ended_at(batch: BatchRow) -> datetime | None:
    return batch.completed_at or batch.expired_at or batch.cancelled_at or batch.failed_at


def _elapsed(conn: Connection, batch: BatchRow) -> float:
    if batch.sealed_at is None:
        return 0.0
    return ((_ended_at(batch) or now(conn)) - batch.sealed_at).total_seconds()


def _reused(conn: Connection, batch_id: str) -> Reused:
    prompts = select(func.count()).where(Prompt.batch_id == batch_id, Prompt.reused_from.is_not(None))
    sums = (
        select(
            func.count(),
            func.coalesce(func.sum(Sample.prompt_tokens), 0),
            func.coalesce(func.sum(Sample.completion_tokens), 0),
        )
        .select_from(Prompt)
        .join(Sample, Sample.prompt_id == Prompt.reused_from)
        .where(Prompt.batch_id == batch_id)
    )
    samples, prompt_tokens, completion_tokens = conn.execute(sums).one()
    return Reused(conn.execute(prompts).scalar_one(), samples, int(prompt_tokens), int(completion_tokens))


def _percentiles(conn: Connection, batch_id: str) -> Sequence[Percentiles | None]:
    """Of queue, first-token and generation seconds; 24 bytes a sample are held, never a text."""
    query = _of(batch_id, select(Sample.queue_seconds, Sample.first_token_seconds, GENERATION_SECONDS))
    measured = (array("d"), array("d"), array("d"))
    for row in conn.execute(query, execution_options={"yield_per": 5000}):
        for values, value in zip(measured, row, strict=True):
            values.append(value)
    return [_percentiles_of(values) for values in measured]


def _percentiles_of(values: "array[float]") -> Percentiles | None:
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return Percentiles(at(0.50), at(0.95), at(0.99))


def _drafters(conn: Connection, batch_id: str) -> list[DrafterTotals]:
    query = select(
        Sample.method,
        func.count(),
        func.sum(Sample.completion_tokens),
        func.sum(Sample.num_steps),
        func.sum(Sample.num_spec_steps),
        func.sum(Sample.num_draft_tokens),
        func.sum(Sample.num_accepted_draft_tokens),
    )
    drafters: list[DrafterTotals] = []
    for row in conn.execute(_of(batch_id, query).group_by(Sample.method).order_by(Sample.method)):
        method, samples, tokens, steps, spec_steps, drafted, accepted = row
        drafters.append(
            DrafterTotals(
                method=method,
                samples=samples,
                completion_tokens=int(tokens),
                num_steps=int(steps),
                num_spec_steps=int(spec_steps),
                num_draft_tokens=None if drafted is None else int(drafted),
                num_accepted_draft_tokens=None if accepted is None else int(accepted),
                acceptance_length=acceptance_length(accepted, spec_steps),
                acceptance_rate=acceptance_rate(accepted, drafted),
                garbled=is_garbled(method, int(spec_steps), drafted, accepted),
            )
        )
    return drafters


def _count_by(conn: Connection, batch_id: str, what: Any) -> dict[str, int]:
    query = _of(batch_id, select(what, func.count())).where(what.is_not(None)).group_by(what).order_by(what)
    return {row[0]: row[1] for row in conn.execute(query)}


def _failures(conn: Connection, batch_id: str) -> list[FailureGroup]:
    failed = (Prompt.batch_id == batch_id, Prompt.status == PromptStatus.FAILED)
    code = func.coalesce(Prompt.error_code, "unknown")
    groups: list[FailureGroup] = []
    counts = select(code, func.count()).where(*failed).group_by(code).order_by(func.count().desc(), code)
    for name, count in conn.execute(counts).all():
        first = (
            select(Prompt.custom_id, Prompt.source_path, Prompt.source_line, Prompt.error_message)
            .where(*failed, code == name)
            .order_by(Prompt.position)
            .limit(EXAMPLES)
        )
        groups.append(FailureGroup(name, count, [FailedPrompt(*row) for row in conn.execute(first)]))
    return groups


def _slowest(conn: Connection, batch_id: str) -> list[SlowPrompt]:
    """By the longest of a prompt's samples; waiting in the queue is not its fault."""
    longest = func.max(GENERATION_SECONDS)
    query = select(
        Prompt.custom_id, longest, func.max(Sample.queue_seconds), func.sum(Sample.completion_tokens)
    )
    query = _of(batch_id, query).group_by(Prompt.id, Prompt.custom_id, Prompt.position)
    rows = conn.execute(query.order_by(longest.desc(), Prompt.position).limit(SLOWEST))
    return [SlowPrompt(name, generation, queue, int(tokens)) for name, generation, queue, tokens in rows]


def _workers(conn: Connection, batch_id: str) -> list[WorkerShare]:
    columns = (Worker.id, Worker.host, Worker.device, Worker.device_name)
    query = select(
        *columns,
        func.count(Sample.prompt_id.distinct()),
        func.count(),
        func.sum(Sample.completion_tokens),
    )
    query = _of(batch_id, query).join(Worker, Worker.id == Sample.worker_id)
    rows = conn.execute(query.group_by(*columns).order_by(Worker.host, Worker.id))
    return [WorkerShare(*row[0:6], int(row[6])) for row in rows]
