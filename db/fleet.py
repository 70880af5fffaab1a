"""Who works, and with which pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from db.clock import now
from db.errors import PairConflict
from db.rows import columns
from db.tables import OPEN_BATCH, Batch, Pair, Worker, WorkerState

LIVE_SECONDS = 30.0  # a worker whose heartbeat is older counts as gone


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A row of `workers`."""

    id: str
    host: str
    pid: int
    device: str
    device_name: str
    device_uuid: str | None
    pair: str
    pair_fingerprint: str
    slots: int
    max_rows: int
    versions: dict[str, Any]
    state: str
    activity: dict[str, Any]
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None


@dataclass(frozen=True, slots=True)
class PairRow:
    """A row of `pairs`."""

    name: str
    fingerprint: str
    config: dict[str, Any]
    generation_defaults: dict[str, Any]
    context_limit: int
    updated_at: datetime


def register_worker(
    conn: Connection,
    *,
    id: str,
    host: str,
    pid: int,
    device: str,
    device_name: str,
    device_uuid: str | None,
    pair: str,
    pair_fingerprint: str,
    slots: int,
    max_rows: int,
    versions: dict[str, Any],
    state: WorkerState = WorkerState.STARTING,
    activity: dict[str, Any] | None = None,
) -> None:
    """A worker process says that it exists. The id must be fresh: it names one process, from start to end."""
    time = now(conn)
    conn.execute(
        insert(Worker).values(
            id=id,
            host=host,
            pid=pid,
            device=device,
            device_name=device_name,
            device_uuid=device_uuid,
            pair=pair,
            pair_fingerprint=pair_fingerprint,
            slots=slots,
            max_rows=max_rows,
            versions=versions,
            state=state,
            activity=activity or {},
            started_at=time,
            heartbeat_at=time,
        )
    )


def heartbeat(conn: Connection, worker_id: str, state: WorkerState, activity: dict[str, Any]) -> None:
    """I am alive, and this is what I am doing."""
    values = {"state": state, "activity": activity, "heartbeat_at": now(conn)}
    conn.execute(update(Worker).where(Worker.id == worker_id).values(values))


def stop_worker(conn: Connection, worker_id: str) -> None:
    """The worker said goodbye; it holds nothing any more."""
    time = now(conn)
    values: dict[str, Any] = {
        "state": WorkerState.STOPPED,
        "activity": {},
        "heartbeat_at": time,
        "stopped_at": time,
    }
    conn.execute(update(Worker).where(Worker.id == worker_id).values(values))


def live_workers(
    conn: Connection, pair: str | None = None, within_seconds: float = LIVE_SECONDS
) -> Sequence[WorkerRow]:
    """Workers that were heard of lately and have not stopped, oldest first."""
    since = now(conn) - timedelta(seconds=within_seconds)
    query = (
        select(*columns(Worker, WorkerRow))
        .where(Worker.heartbeat_at >= since, Worker.state != WorkerState.STOPPED)
        .order_by(Worker.started_at, Worker.id)
    )
    if pair is not None:
        query = query.where(Worker.pair == pair)
    return [WorkerRow(*row) for row in conn.execute(query)]


def is_eldest(conn: Connection, worker_id: str, pair: str) -> bool:
    """Whether this is, of the pair's workers that claim, the one that started first."""
    ready = (worker.id for worker in live_workers(conn, pair) if worker.state == WorkerState.READY)
    return next(ready, None) == worker_id


def register_pair(
    conn: Connection,
    name: str,
    fingerprint: str,
    config: dict[str, Any],
    generation_defaults: dict[str, Any],
    context_limit: int,
    worker_id: str | None = None,
) -> None:
    """Record a pair as its worker resolved it, unless a live worker or an open batch means another by it.

    Of two that start at the same moment the second gives way, and one is left.
    """
    check_open_batches(conn, name, fingerprint)
    is_first = False
    for worker in live_workers(conn, name):
        if worker.id == worker_id:
            is_first = True  # those that follow started later
        elif worker.pair_fingerprint != fingerprint and not (
            is_first and worker.state == WorkerState.STARTING
        ):
            raise PairConflict(
                f"The pair {name!r} here has fingerprint {fingerprint}, but a worker on {worker.host} "
                f"(pid {worker.pid}) serves {name!r} with fingerprint {worker.pair_fingerprint}. "
                "Use one specmill.toml on both machines, or another name for one of the pairs."
            )
    values = {
        "fingerprint": fingerprint,
        "config": config,
        "generation_defaults": generation_defaults,
        "context_limit": context_limit,
        "updated_at": now(conn),
    }
    # One statement: workers of a fleet start at the same moment, and each may find no row yet.
    upsert = (postgresql if conn.dialect.name == "postgresql" else sqlite).insert(Pair)
    conn.execute(
        upsert.values(name=name, **values).on_conflict_do_update(index_elements=[Pair.name], set_=values)
    )


def check_open_batches(conn: Connection, name: str, fingerprint: str) -> None:
    """Raise PairConflict if a sealed batch that has not ended means the name as it was declared before.

    Its prompts must not be answered by a pair that its rows do not name.
    """
    other = conn.execute(
        select(Batch.id, Batch.pair_fingerprint)
        .where(
            Batch.pair == name,
            Batch.status.in_(OPEN_BATCH),
            Batch.sealed_at.is_not(None),
            Batch.pair_fingerprint != fingerprint,
        )
        .limit(1)
    ).one_or_none()
    if other is not None:
        raise PairConflict(
            f"The pair {name!r} here has fingerprint {fingerprint}, but {other.id}, which has not ended, was "
            f"submitted for {name!r} with fingerprint {other.pair_fingerprint}. Run it to its end with those "
            f"settings, or `producer cancel {other.id}`, or give the changed pair another name."
        )


def get_pair(conn: Connection, name: str) -> PairRow | None:
    """The pair as workers last resolved it; None where no worker ever served it."""
    row = conn.execute(select(*columns(Pair, PairRow)).where(Pair.name == name)).one_or_none()
    return None if row is None else PairRow(*row)


def list_pairs(conn: Connection) -> Sequence[PairRow]:
    """Every pair that a worker ever served, by name."""
    return [PairRow(*row) for row in conn.execute(select(*columns(Pair, PairRow)).order_by(Pair.name))]
