"""The runner's dealings with the queue in the database, and its patience when the database is away."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from db import fleet, queue, speedups
from db.actions import paused_leases
from db.connect import writing
from db.errors import DatabaseUnreachable
from db.queue import Claimed, Failed, Lease, Success
from db.speedups import NewComparison
from db.tables import WorkerState
from worker.sampling import resolve
from worker.serving import Serving
from worker.spool import Result

log = logging.getLogger("specmill.worker")

T = TypeVar("T")

FIRST_PAUSE = 1.0  # seconds; doubled with every further failure
LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Claims:
    """What a claim brought. `must_drain`: ask again once nothing runs here, as one must run alone."""

    prompts: list[Claimed]
    must_drain: bool = False


class Ledger:
    """Every method is one transaction, or None while the database is away: ask again after `away_seconds`."""

    def __init__(self, db: Engine, serving: Serving) -> None:
        self._db = db
        self._serving = serving
        self._resolved: set[str] = set()  # batches whose sampling this process has resolved
        self._pause = 0.0
        self._retry_at = 0.0

    @property
    def away_seconds(self) -> float:
        return max(0.0, self._retry_at - time.monotonic())

    def try_now(self) -> None:
        """The process is about to end: do not sit out the pause."""
        self._retry_at = 0.0

    def claim(self, rows: int, *, is_idle: bool) -> Claims | None:
        """Prompts for about `rows` rows, one for each of its n samples; at least one prompt, if any waits.

        An idle worker takes a suspect first, and nothing beside it. One that is busy claims on, unless it is
        the eldest: some worker must see to the suspects, however much other work there is.
        """
        serving = self._serving

        def take(conn: Connection, limit: int) -> list[Claimed]:
            return queue.claim(conn, serving.pair, serving.worker_id, limit, serving.lease_seconds)

        def write(conn: Connection) -> Claims:
            if queue.suspects_wait(conn, serving.pair):
                if is_idle:
                    suspect = queue.claim_suspect(
                        conn, serving.pair, serving.worker_id, serving.lease_seconds
                    )
                    if suspect is not None:
                        self._resolve(conn, [suspect])
                        return Claims([suspect])
                elif fleet.is_eldest(conn, serving.worker_id, serving.pair):
                    return Claims([], must_drain=True)
            limit = queue.claim_limit(conn, serving.pair, rows)
            claimed = take(conn, 1)
            if claimed:  # the first one's n foretells that of the rest, which are mostly of its batch
                limit = min(limit, rows // claimed[0].n)
            if claimed and limit > 1:
                claimed += take(conn, limit - 1)
            self._resolve(conn, claimed)
            return Claims(claimed)

        claims = self._transact(write)
        self._resolved |= {c.batch_id for c in claims.prompts} if claims else set()
        return claims

    def _resolve(self, conn: Connection, claimed: Sequence[Claimed]) -> None:
        for batch_id, given in {c.batch_id: c.batch_sampling for c in claimed}.items():
            if batch_id not in self._resolved:
                queue.resolve_sampling(conn, batch_id, resolve(self._serving.defaults, given))

    def complete(
        self, successes: Sequence[Success], failures: Sequence[Failed], returned: Sequence[Lease]
    ) -> set[int] | None:
        """Prompts whose outcome was accepted; the leases of the others had been lost."""

        def write(conn: Connection) -> set[int]:
            accepted = queue.complete(conn, self._serving.worker_id, successes, failures)
            if returned:
                queue.release(conn, self._serving.worker_id, returned)
            return accepted

        accepted = self._transact(write)
        if (
            accepted
        ):  # a batch's end is a transaction of its own: it sees what other workers committed meanwhile
            self._transact(queue.finish_batches)
        return accepted

    def hand_in(self, result: Result) -> bool | None:
        """Write what a process before this one had spooled; whether its lease still held."""
        successes, failures = (
            ([result.outcome], []) if isinstance(result.outcome, Success) else ([], [result.outcome])
        )
        prompt_id = result.outcome.lease.prompt_id

        def write(conn: Connection) -> set[int]:
            if queue.batch_of(conn, prompt_id) != result.batch_id:
                return set()
            return queue.complete(conn, self._serving.worker_id, successes, failures)

        accepted = self._transact(write)
        if accepted:
            self._transact(queue.finish_batches)
        return None if accepted is None else prompt_id in accepted

    def release(self, leases: Sequence[Lease]) -> int | None:
        return self._transact(lambda conn: queue.release(conn, self._serving.worker_id, leases))

    def beat(
        self, leases: Sequence[Lease], state: WorkerState, activity: dict[str, Any]
    ) -> set[Lease] | None:
        """Renew leases and this worker's heartbeat, give back what is paused; the leases still held."""

        def write(conn: Connection) -> set[Lease]:
            fleet.heartbeat(conn, self._serving.worker_id, state, activity)
            if not leases:
                return set()
            queue.release(conn, self._serving.worker_id, paused_leases(conn, leases))
            return queue.renew(conn, self._serving.worker_id, leases, self._serving.lease_seconds)

        return self._transact(write)

    def compare(self, comparisons: Sequence[NewComparison]) -> bool | None:
        """Store what plain blocks of steps have shown of the batches that were in flight."""

        def write(conn: Connection) -> bool:
            speedups.record(conn, self._serving.worker_id, comparisons)
            return True

        return self._transact(write)

    def pending(self) -> int | None:
        """Prompts that wait, counted no further than this worker would ring for: a queue may be long."""
        serving = self._serving
        return self._transact(lambda conn: queue.pending_count(conn, serving.pair, at_most=serving.slots))

    def stop_worker(self) -> bool | None:
        def write(conn: Connection) -> bool:
            fleet.stop_worker(conn, self._serving.worker_id)
            return True

        return self._transact(write)

    def _transact(self, write: Callable[[Connection], T]) -> T | None:
        if self.away_seconds:
            return None
        try:
            with writing(self._db) as conn:
                result = write(conn)
        except DatabaseUnreachable as error:
            if not self._pause:
                log.warning("%s No prompt is claimed until it is back; what is running goes on.", error)
            self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
            self._retry_at = time.monotonic() + self._pause
            return None
        if self._pause:
            log.info("the database is back")
        self._pause = 0.0
        return result
