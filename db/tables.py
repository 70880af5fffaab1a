"""The tables. Statuses are documented where they are defined. Times are UTC, durations seconds."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, MetaData, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from db.types import BigIntegerKey, Json, JsonAsGiven, UtcDateTime


class BatchStatus(StrEnum):
    """OpenAI's batch statuses. `paused` is a flag beside them (`Batch.paused_at`), not a status.

    validating -> in_progress      sealed
    in_progress -> completed, cancelled, expired    its last prompt ended: the worst that befell one decides
    in_progress -> cancelling      db.actions.cancel
    cancelling -> cancelled        its last prompt ended
    completed, cancelled, expired -> in_progress    db.retrying.retry
    """

    VALIDATING = "validating"  # rows are still being submitted; not claimable
    IN_PROGRESS = "in_progress"  # sealed; prompts are pending or running
    FINALIZING = "finalizing"  # every prompt has ended; what follows a batch's end is being done
    COMPLETED = "completed"  # every prompt ended, some perhaps as failed
    FAILED = "failed"  # the submission itself was refused
    EXPIRED = "expired"  # the deadline passed first; what was finished is kept
    CANCELLING = "cancelling"  # cancel was asked for; prompts are being cancelled, a chunk at a time
    CANCELLED = "cancelled"  # cancelled; what was finished is kept


OPEN_BATCH = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


class PromptStatus(StrEnum):
    """What moves a prompt, and who. `attempt` grows with every move but the holder's last.

    pending -> running             claim
    running -> succeeded, failed   the holder, fenced
    running -> pending             the holder releases it: drain, a paused batch, shed rows; costs nothing
    running -> pending, failed     the reaper: the lease ended, a crash is counted
    pending, running -> cancelled, expired    cancel, deadline
    failed, cancelled, expired -> pending     retry; crashes are forgotten, samples deleted
    """

    PENDING = "pending"  # waits for a claim
    RUNNING = "running"  # a worker holds a lease on it
    SUCCEEDED = "succeeded"  # its samples are stored, or reused_from names the prompt that has them
    FAILED = "failed"  # a final error: see error_code and error_message
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL_PROMPT = (
    PromptStatus.SUCCEEDED,
    PromptStatus.FAILED,
    PromptStatus.CANCELLED,
    PromptStatus.EXPIRED,
)


CRASH_LIMIT = 3  # process deaths while running it that end a prompt as failed
SUSPECTED_AT = CRASH_LIMIT - 1  # with so many it runs alone, so that the last can be laid at its own door


class WorkerState(StrEnum):
    STARTING = "starting"  # loading its pair
    READY = "ready"  # claims work
    DRAINING = "draining"  # finishes what it holds, claims no more
    STOPPED = "stopped"  # said goodbye


class Base(DeclarativeBase):
    """Constraint names are fixed so that migrations can name them on both dialects."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: Json, list[Any]: Json, str: Text}  # noqa: RUF012 (read by SQLAlchemy as a plain class attribute)


class Batch(Base):
    """One submission."""

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_pair_status", "pair", "status"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # "batch_" + 24 hex digits, increasing with time
    name: Mapped[str | None]
    source_key: Mapped[str] = mapped_column(index=True)  # hash(name or absolute paths, pair fingerprint)
    pair: Mapped[str]
    pair_fingerprint: Mapped[str]
    sampling: Mapped[dict[str, Any]]  # as given at submit; keys are those of Sampling
    sampling_resolved: Mapped[dict[str, Any] | None]  # with the model's defaults filled in, by the pair
    seed: Mapped[int] = mapped_column(BigInteger)  # drives prompts whose sampling names no seed
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    priority: Mapped[int]  # 0 low, 1 normal, 2 high
    status: Mapped[str]
    input_errors: Mapped[list[Any]]  # bad items left out at submit: {"path", "line", "message"}, capped
    num_input_errors: Mapped[int]
    speedup_vs_baseline: Mapped[float | None]  # what drafting brought, by its comparisons; NULL without any
    speedup_low: Mapped[float | None]  # its bootstrap interval of 95%; NULL with a single block
    speedup_high: Mapped[float | None]
    deadline: Mapped[datetime | None]
    created_at: Mapped[datetime]
    sealed_at: Mapped[datetime | None]  # the last row is in; only then are rows claimable
    paused_at: Mapped[datetime | None]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]


SUSPECTS = f"status = '{PromptStatus.PENDING}' AND crashes >= {SUSPECTED_AT}"


class Prompt(Base):
    """One row of work. Exactly one of `messages` (chat) and `text` (raw) is set."""

    __tablename__ = "prompts"
    __table_args__ = (
        UniqueConstraint("batch_id", "custom_id"),
        # Pages of results: within a batch, ids grow with positions. An index on the position itself would
        # tempt PostgreSQL to claim by it, past all that has ended.
        Index("ix_prompts_batch_id_id", "batch_id", "id"),
        # Claims (the first pending of a batch), counts by status and the batch's end.
        Index("ix_prompts_batch_id_status_position", "batch_id", "status", "position"),
        Index("ix_prompts_running", "lease_until", sqlite_where=text("status = 'running'"),
              postgresql_where=text("status = 'running'")),
        # Those that must run alone: there are hardly any, and every claim asks.
        Index("ix_prompts_suspects", "batch_id", sqlite_where=text(SUSPECTS),
              postgresql_where=text(SUSPECTS)),
        Index("ix_prompts_reused_from", "reused_from", sqlite_where=text("reused_from IS NOT NULL"),
              postgresql_where=text("reused_from IS NOT NULL")),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigIntegerKey, primary_key=True, autoincrement=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    position: Mapped[int]  # order of submission, from 0
    custom_id: Mapped[str]
    source_path: Mapped[str | None]
    source_line: Mapped[int | None]
    messages: Mapped[list[Any] | None] = mapped_column(JsonAsGiven)
    text: Mapped[str | None]
    chat_template_kwargs: Mapped[dict[str, Any] | None] = mapped_column(JsonAsGiven)
    sampling: Mapped[dict[str, Any] | None]  # what this prompt sets beside its batch's sampling
    n: Mapped[int]  # samples wanted
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    content_key: Mapped[str]  # hash(prompt as given, system, sampling, pair fingerprint)
    status: Mapped[str]
    attempt: Mapped[int]  # fencing token: grows with every change of holder
    crashes: Mapped[int]  # process deaths while running this prompt
    owner: Mapped[str | None]  # workers.id of the holder
    lease_until: Mapped[datetime | None]
    rung_at: Mapped[datetime | None]  # the last bell that was surely rung for it
    created_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    reused_from: Mapped[int | None] = mapped_column(
        ForeignKey("prompts.id")
    )  # the prompt whose samples count
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    rendered: Mapped[str | None]  # the prompt as the model saw it


class QualityFlag(StrEnum):
    """What makes a sample, or its acceptance, doubtful."""

    REPEATS = "repeats_itself"  # it ends in the same few tokens over and over, which any drafter foresees
    GARBLED = "drafts_rejected"  # a drafting model was almost never right: its weights or their use are wrong


class Sample(Base):
    """One generation of a prompt. Acceptance columns are NULL, not 0, where nothing was drafted."""

    __tablename__ = "samples"
    __table_args__ = (UniqueConstraint("prompt_id", "sample_index"),)

    id: Mapped[int] = mapped_column(BigIntegerKey, primary_key=True, autoincrement=True)
    prompt_id: Mapped[int] = mapped_column(ForeignKey("prompts.id", ondelete="CASCADE"))
    sample_index: Mapped[int]  # 0 .. n - 1
    finish_reason: Mapped[str]  # "stop" or "length"
    seed: Mapped[int] = mapped_column(BigInteger)  # the effective one: with it the text can be repeated
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    cached_tokens: Mapped[int]  # prompt tokens whose KV was taken from another prompt
    queue_seconds: Mapped[float]  # submitted until its prefill began
    prefill_seconds: Mapped[float]  # the passes that read the prompt
    first_token_seconds: Mapped[float]  # prefill began until the first token was emitted
    decode_seconds: Mapped[float]  # first token until the last
    total_seconds: Mapped[float]  # submitted until the last token
    method: Mapped[str]  # the drafter
    spec_disabled_reason: Mapped[str | None]
    num_steps: Mapped[int]  # verify steps of the target
    num_spec_steps: Mapped[int]  # those that verified at least one proposal
    num_draft_tokens: Mapped[int | None]
    num_accepted_draft_tokens: Mapped[int | None]
    acceptance_histogram: Mapped[list[Any] | None]  # [k] = spec steps with k accepted; sums to num_spec_steps
    mean_acceptance_length: Mapped[float | None]  # 1 + accepted / num_spec_steps
    draft_acceptance_rate: Mapped[float | None]  # accepted / drafted
    rows_in_flight: Mapped[float]  # mean over its steps
    quality_flag: Mapped[str | None]
    text: Mapped[str]  # after the numbers: SQLite reads a long row from its beginning
    logprobs: Mapped[list[Any] | None]
    attempt: Mapped[int]
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    created_at: Mapped[datetime]


class Worker(Base):
    """One worker process, from its start to its end; a restart is a new row."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    device: Mapped[str]  # "cpu", "cuda:0"
    device_name: Mapped[str]
    device_uuid: Mapped[str | None]
    pair: Mapped[str]
    pair_fingerprint: Mapped[str]
    slots: Mapped[int]  # bells it hears at once
    max_rows: Mapped[int]  # rows its engine runs at once
    versions: Mapped[dict[str, Any]]
    state: Mapped[str]
    activity: Mapped[dict[str, Any]]  # rows_in_flight, tokens_per_second, claimed
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime] = mapped_column(index=True)
    stopped_at: Mapped[datetime | None]


class Pair(Base):
    """A pair as the workers that serve it resolved it. One row a name: the fingerprint in use."""

    __tablename__ = "pairs"

    name: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]
    config: Mapped[dict[str, Any]]  # declared settings and resolved revisions
    generation_defaults: Mapped[dict[str, Any]]  # sampling where neither batch nor prompt says
    context_limit: Mapped[int]  # tokens, prompt and output together
    updated_at: Mapped[datetime]


class Baseline(Base):
    """A plain-decoding measurement: what a speed-up is computed against."""

    __tablename__ = "baselines"
    __table_args__ = (UniqueConstraint("pair_fingerprint", "device_name", "rows_in_flight"),)

    id: Mapped[int] = mapped_column(BigIntegerKey, primary_key=True, autoincrement=True)
    pair: Mapped[str]
    pair_fingerprint: Mapped[str]
    device_name: Mapped[str]
    rows_in_flight: Mapped[int]
    tokens_per_second: Mapped[float]
    measured_at: Mapped[datetime]


class Comparison(Base):
    """A block of plain steps within a job, beside the speculative steps around it, at equal rows in flight.

    Tokens and seconds are those of all rows: with several batches in flight, each has the comparison.
    """

    __tablename__ = "comparisons"
    __table_args__ = (UniqueConstraint("batch_id", "worker_id", "block", "rows_in_flight"),)

    id: Mapped[int] = mapped_column(BigIntegerKey, primary_key=True, autoincrement=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    block: Mapped[int]  # of this worker; its numbers of rows are measured together
    rows_in_flight: Mapped[int]
    batches_in_flight: Mapped[int]
    plain_steps: Mapped[int]
    plain_tokens: Mapped[int]
    plain_seconds: Mapped[float]
    speculative_steps: Mapped[int]
    speculative_tokens: Mapped[int]
    speculative_seconds: Mapped[float]
    measured_at: Mapped[datetime]


class ReaperTick(Base):
    """One row: when any reaper last ran, so that a gap in which everyone was away is seen."""

    __tablename__ = "reaper_ticks"

    id: Mapped[int] = mapped_column(primary_key=True)
    ticked_at: Mapped[datetime]
    quiet_until: Mapped[datetime | None]  # nobody reaps before: the living renew first
