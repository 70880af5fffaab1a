"""The queue: what a worker may run, and how it keeps, gives back or ends it.

Every write of a holder is fenced: it matches (prompt, attempt, status = running), or touches nothing.
`attempt` grows with every change of holder: a worker that lost its lease has lost its say.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from db.clock import now
from db.ending import end_batches
from db.fleet import live_workers
from db.queue_sql import (
    BATCHES_TO_SERVE,
    CLAIM,
    CLAIM_SUSPECT,
    COUNT_PENDING,
    FAIL,
    LOCK_RUNNING,
    RELEASE,
    RENEW,
    SAMPLING_OF,
    SUCCEED,
    SUSPECTS,
    UNRUNG,
)
from db.tables import SUSPECTED_AT, Batch, Prompt, PromptStatus, Sample
from db.text import storable

EVERY = 2**31 - 1
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
    def is_suspect(self) -> bool:
        """It must run alone."""
        return self.crashes >= SUSPECTED_AT

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
    until = time + timedelta(seconds=lease_seconds)
    claimed: list[Claimed] = []
    for batch_id, sampling, seed in conn.execute(BATCHES_TO_SERVE, {"pair": pair, "now": time}).all():
        room = limit - len(claimed)
        rows = conn.execute(
            CLAIM, {"batch": batch_id, "room": room, "holder": owner, "until": until, "now": time}
        ).all()
        claimed += [_claimed(row, sampling, seed, time) for row in sorted(rows, key=lambda row: row.position)]
        if len(claimed) >= limit:
            break
    return claimed


def claim_suspect(conn: Connection, pair: str, owner: str, lease_seconds: float) -> Claimed | None:
    """Take one prompt whose holders have died so often that it must run alone; `claim` takes none of these.

    So only a prompt that kills its worker by itself reaches the limit of crashes, and no neighbour of it.
    """
    time = now(conn)
    until = time + timedelta(seconds=lease_seconds)
    row = conn.execute(
        CLAIM_SUSPECT, {"pair": pair, "holder": owner, "until": until, "now": time}
    ).one_or_none()
    if row is None:
        return None
    sampling, seed = conn.execute(SAMPLING_OF, {"batch": row.batch_id}).one()
    return _claimed(row, sampling, seed, time)


def suspects_wait(conn: Connection, pair: str) -> bool:
    """Whether `claim_suspect` would find one."""
    return conn.execute(SUSPECTS, {"pair": pair, "now": now(conn)}).first() is not None


def _claimed(row: Row[Any], sampling: dict[str, Any], seed: int, time: datetime) -> Claimed:
    return Claimed(
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


def claim_limit(conn: Connection, pair: str, room: int) -> int:
    """How many to claim: what there is room for, but never so many that others get no share of the tail."""
    shares = 2 * max(1, len(live_workers(conn, pair)))
    return min(room, max(1, pending_count(conn, pair, at_most=room * shares) // shares))


def pending_count(conn: Connection, pair: str, at_most: int = EVERY) -> int:
    """Claimable prompts of a pair. A long queue takes long to count: say where counting may stop."""
    count = conn.execute(COUNT_PENDING, {"pair": pair, "now": now(conn), "at_most": at_most}).scalar_one()
    return min(int(count), at_most)


def renew(conn: Connection, owner: str, leases: Iterable[Lease], lease_seconds: float) -> set[Lease]:
    """Prolong leases; those not returned are lost: stop running their prompts."""
    until = now(conn) + timedelta(seconds=lease_seconds)
    held = set(_lock_held(conn, leases, owner))
    for ids in _chunks([lease.prompt_id for lease in held]):
        conn.execute(RENEW, {"ids": ids, "until": until})
    return held


def release(conn: Connection, owner: str, leases: Iterable[Lease]) -> int:
    """Give prompts back unrun (drain, pause, shed); it costs them nothing. How many were still ours."""
    held = _lock_held(conn, leases, owner)
    for ids in _chunks([lease.prompt_id for lease in held]):
        conn.execute(RELEASE, {"ids": ids})
    return len(held)


def complete(
    conn: Connection, owner: str, successes: Sequence[Success], failures: Sequence[Failed]
) -> set[int]:
    """End prompts, and store the samples of those whose lease still holds; their ids are returned.

    A lease that has run out but was not reaped still holds. The owner need not be the one that claimed: a
    fresh process may hand in what a dead one had spooled.
    """
    time = now(conn)
    held = _lock_held(conn, [outcome.lease for outcome in (*successes, *failures)])
    succeeded = [success for success in successes if success.lease in held]
    failed = [failure for failure in failures if failure.lease in held]
    if succeeded:
        conn.execute(
            SUCCEED,
            [{"prompt": s.lease.prompt_id, "as_seen": storable(s.rendered), "now": time} for s in succeeded],
        )
        conn.execute(
            insert(Sample), [row for s in succeeded for row in _sample_rows(s, held[s.lease], owner, time)]
        )
    if failed:
        conn.execute(
            FAIL,
            [
                {"prompt": f.lease.prompt_id, "code": f.code, "reason": storable(f.message), "now": time}
                for f in failed
            ],
        )
    return {lease.prompt_id for lease in held}


def _sample_rows(success: Success, wanted: int, owner: str, time: datetime) -> Iterator[dict[str, Any]]:
    lease = success.lease
    if len(success.samples) != wanted:
        raise ValueError(f"prompt {lease.prompt_id} wants {wanted} samples, not {len(success.samples)}")
    for sample in success.samples:
        yield {
            **sample,
            "text": storable(sample["text"]),
            "prompt_id": lease.prompt_id,
            "attempt": lease.attempt,
            "worker_id": owner,
            "created_at": time,
        }


def batch_of(conn: Connection, prompt_id: int) -> str | None:
    """None where there is no such prompt."""
    return conn.execute(select(Prompt.batch_id).where(Prompt.id == prompt_id)).scalar_one_or_none()


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
    """Claimable prompts without a bell for `older_than` seconds, in the order of claims."""
    time = now(conn)
    long_ago = time - timedelta(seconds=older_than)
    found: list[int] = []
    for batch in conn.execute(BATCHES_TO_SERVE, {"pair": pair, "now": time}).all():
        room = limit - len(found)
        found += conn.execute(UNRUNG, {"batch": batch.id, "long_ago": long_ago, "room": room}).scalars()
        if len(found) >= limit:
            break
    return found


def mark_rung(conn: Connection, prompt_ids: Sequence[int]) -> None:
    """Bells for these were surely sent."""
    time = now(conn)
    for ids in _chunks(prompt_ids):
        conn.execute(
            update(Prompt)
            .where(Prompt.id.in_(ids), Prompt.status == PromptStatus.PENDING)
            .values(rung_at=time)
        )


def _lock_held(conn: Connection, leases: Iterable[Lease], owner: str | None = None) -> dict[Lease, int]:
    """The leases that still hold, with the number of samples wanted; nobody else can change them now."""
    wanted = sorted(leases, key=lambda lease: lease.prompt_id)
    held: dict[Lease, int] = {}
    for ids in _chunks([lease.prompt_id for lease in wanted]):
        rows = conn.execute(LOCK_RUNNING, {"ids": ids})
        held |= {Lease(row.id, row.attempt): row.n for row in rows if owner in (None, row.owner)}
    return {lease: held[lease] for lease in wanted if lease in held}


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
