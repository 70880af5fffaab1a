"""The queue: what a worker may run, and how it keeps, gives back or ends it.

Every write of a holder is fenced: it matches (prompt, attempt, status = running), or touches nothing.
`attempt` grows with every change of holder: a worker that lost its lease has lost its say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    Update,
    column,
    exists,
    func,
    insert,
    or_,
    select,
    update,
    values,
)

from db.clock import now
from db.ending import end_batches
from db.fleet import live_workers
from db.tables import Batch, BatchStatus, Prompt, PromptStatus, Sample

CHUNK = 500  # rows a statement, far below SQLite's limit of variables


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run a prompt: void once the prompt's attempt has grown."""

    prompt_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A prompt to run, and how. Sampling: this prompt's options override its batch's."""

    prompt_id: int
    attempt: int
    batch_id: str
    position: int
    custom_id: str
    messages: list[Any] | None
    text: str | None
    chat_template_kwargs: dict[str, Any] | None
    sampling: dict[str, Any] | None
    batch_sampling: dict[str, Any]  # as resolved by the first worker of the batch, else as given
    batch_seed: int
    n: int
    crashes: int
    waited_seconds: float  # submitted until claimed, by the database's clock

    @property
    def lease(self) -> Lease:
        return Lease(self.prompt_id, self.attempt)


@dataclass(frozen=True, slots=True)
class Success:
    """A prompt's samples: columns of `samples` except prompt_id, attempt, worker_id, created_at."""

    lease: Lease
    rendered: str
    samples: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """A final error: trying again would fail again."""

    lease: Lease
    code: str
    message: str


def claim(conn: Connection, pair: str, owner: str, limit: int, lease_seconds: float) -> list[Claimed]:
    """Take up to `limit` prompts: highest priority first, then the least-served batch, then in order."""
    time = now(conn)
    claimed: list[Claimed] = []
    for batch_id, sampling, seed in conn.execute(_claimable_batches(pair, time)).all():
        picked = (
            select(Prompt.id)
            .where(Prompt.batch_id == batch_id, Prompt.status == PromptStatus.PENDING)
            .order_by(Prompt.position)
            .limit(limit - len(claimed))
            .with_for_update(skip_locked=True)
            .cte("picked")
        )
        rows = conn.execute(
            update(Prompt)
            .where(Prompt.id.in_(select(picked.c.id)))
            .values(
                status=PromptStatus.RUNNING,
                attempt=Prompt.attempt + 1,
                owner=owner,
                lease_until=time + timedelta(seconds=lease_seconds),
                claimed_at=time,
            )
            .returning(
                Prompt.id,
                Prompt.attempt,
                Prompt.batch_id,
                Prompt.position,
                Prompt.custom_id,
                Prompt.messages,
                Prompt.text,
                Prompt.chat_template_kwargs,
                Prompt.sampling,
                Prompt.n,
                Prompt.crashes,
                Prompt.created_at,
            )
        ).all()
        claimed += [
            Claimed(
                prompt_id=row.id,
                attempt=row.attempt,
                batch_id=row.batch_id,
                position=row.position,
                custom_id=row.custom_id,
                messages=row.messages,
                text=row.text,
                chat_template_kwargs=row.chat_template_kwargs,
                sampling=row.sampling,
                batch_sampling=sampling,
                batch_seed=seed,
                n=row.n,
                crashes=row.crashes,
                waited_seconds=(time - row.created_at).total_seconds(),
            )
            for row in sorted(rows, key=lambda row: row.position)
        ]
        if len(claimed) >= limit:
            break
    return claimed


def _claimable(pair: str, time: datetime) -> list[ColumnElement[bool]]:
    """Sealed, open, neither paused nor past its deadline."""
    return [
        Batch.pair == pair,
        Batch.status == BatchStatus.IN_PROGRESS,
        Batch.sealed_at.is_not(None),
        Batch.paused_at.is_(None),
        or_(Batch.deadline.is_(None), Batch.deadline > time),
    ]


def _claimable_batches(pair: str, time: datetime) -> Select[str, dict[str, Any], int]:
    of_batch = Prompt.batch_id == Batch.id
    running = select(func.count()).where(of_batch, Prompt.status == PromptStatus.RUNNING).scalar_subquery()
    return (
        select(Batch.id, func.coalesce(Batch.sampling_resolved, Batch.sampling), Batch.seed)
        .where(*_claimable(pair, time), exists().where(of_batch, Prompt.status == PromptStatus.PENDING))
        .order_by(Batch.priority.desc(), running, Batch.created_at, Batch.id)
    )


def claim_limit(conn: Connection, pair: str, room: int) -> int:
    """How many to claim: what there is room for, but never so many that others get no share of the tail."""
    others = 2 * max(1, len(live_workers(conn, pair)))
    return min(room, max(1, pending_count(conn, pair, at_most=room * others) // others))


def pending_count(conn: Connection, pair: str, at_most: int | None = None) -> int:
    """Claimable prompts of a pair; counting stops at `at_most`."""
    query = (
        select(Prompt.id)
        .join(Batch, Prompt.batch_id == Batch.id)
        .where(*_claimable(pair, now(conn)), Prompt.status == PromptStatus.PENDING)
    )
    if at_most is not None:
        query = query.limit(at_most)
    return conn.execute(select(func.count()).select_from(query.subquery())).scalar_one()


def renew(conn: Connection, owner: str, leases: Iterable[Lease], lease_seconds: float) -> set[Lease]:
    """Prolong leases; those not returned are lost: stop running their prompts."""
    until = now(conn) + timedelta(seconds=lease_seconds)
    kept: set[Lease] = set()
    for held in _held([(lease.prompt_id, lease.attempt) for lease in leases]):
        renewed = (
            _fenced(held)
            .where(Prompt.owner == owner)
            .values(lease_until=until)
            .returning(Prompt.id, Prompt.attempt)
        )
        kept |= {Lease(row.id, row.attempt) for row in conn.execute(renewed)}
    return kept


def release(conn: Connection, owner: str, leases: Iterable[Lease]) -> int:
    """Give prompts back unrun (drain, pause, shed); it costs them nothing. How many were still ours."""
    released = 0
    for held in _held([(lease.prompt_id, lease.attempt) for lease in leases]):
        given_back = (
            _fenced(held)
            .where(Prompt.owner == owner)
            .values(
                status=PromptStatus.PENDING,
                attempt=Prompt.attempt + 1,
                owner=None,
                lease_until=None,
                claimed_at=None,
                rung_at=None,
            )
        )
        released += len(conn.execute(given_back.returning(Prompt.id)).all())
    return released


def complete(
    conn: Connection, owner: str, successes: Sequence[Success], failures: Sequence[Failed]
) -> set[int]:
    """End prompts, and store the samples of those whose lease still holds; their ids are returned.

    A lease that has run out but was not reaped still holds.
    """
    time = now(conn)
    ended: dict[str, Any] = {"owner": None, "lease_until": None, "ended_at": time}
    accepted: set[int] = set()
    for held in _held([(s.lease.prompt_id, s.lease.attempt, s.rendered) for s in successes], "rendered"):
        stored = _fenced(held).values(status=PromptStatus.SUCCEEDED, rendered=held.c.rendered, **ended)
        accepted |= set(conn.execute(stored.returning(Prompt.id)).scalars())
    samples = [
        {
            **sample,
            "prompt_id": success.lease.prompt_id,
            "attempt": success.lease.attempt,
            "worker_id": owner,
            "created_at": time,
        }
        for success in successes
        if success.lease.prompt_id in accepted
        for sample in success.samples
    ]
    if samples:
        conn.execute(insert(Sample), samples)
    for held in _held(
        [(f.lease.prompt_id, f.lease.attempt, f.code, f.message) for f in failures], "code", "message"
    ):
        failed = _fenced(held).values(
            status=PromptStatus.FAILED, error_code=held.c.code, error_message=held.c.message, **ended
        )
        accepted |= set(conn.execute(failed.returning(Prompt.id)).scalars())
    return accepted


def resolve_sampling(conn: Connection, batch_id: str, resolved: dict[str, Any]) -> None:
    """Store the sampling with the model's defaults filled in; the first worker to say so decides."""
    conn.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.sampling_resolved.is_(None))
        .values(sampling_resolved=resolved)
    )


def finish_batches(conn: Connection) -> Sequence[str]:
    """End the batches whose prompts have all ended; see `end_batches`. In a transaction of its own."""
    return end_batches(conn)


def unrung(conn: Connection, pair: str, older_than: float, limit: int = 1000) -> Sequence[int]:
    """Claimable prompts for which no bell was rung within `older_than` seconds, in order of submission."""
    time = now(conn)
    return (
        conn.execute(
            select(Prompt.id)
            .join(Batch, Prompt.batch_id == Batch.id)
            .where(
                *_claimable(pair, time),
                Prompt.status == PromptStatus.PENDING,
                or_(Prompt.rung_at.is_(None), Prompt.rung_at < time - timedelta(seconds=older_than)),
            )
            .order_by(Batch.priority.desc(), Batch.created_at, Batch.id, Prompt.position)
            .limit(limit)
        )
        .scalars()
        .all()
    )


def mark_rung(conn: Connection, prompt_ids: Sequence[int]) -> None:
    """Bells for these were surely sent."""
    time = now(conn)
    for start in range(0, len(prompt_ids), CHUNK):
        ids = prompt_ids[start : start + CHUNK]
        conn.execute(
            update(Prompt)
            .where(Prompt.id.in_(ids), Prompt.status == PromptStatus.PENDING)
            .values(rung_at=time)
        )


def _held(rows: Sequence[tuple[Any, ...]], *text_columns: str) -> Iterable[CTE]:
    """What a holder says about its prompts, as tables (id, attempt, text columns...) to join with."""
    columns = [
        column("id", BigInteger),
        column("attempt", Integer),
        *(column(name, Text) for name in text_columns),
    ]
    for start in range(0, len(rows), CHUNK):
        yield values(*columns, name="held").data(list(rows[start : start + CHUNK])).cte("held")


def _fenced(held: CTE) -> Update:
    """An update of the prompts whose holder still holds them."""
    return update(Prompt).where(
        Prompt.id == held.c.id, Prompt.attempt == held.c.attempt, Prompt.status == PromptStatus.RUNNING
    )
