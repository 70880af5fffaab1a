"""What drafting brought a batch: speculative steps beside the plain ones that its workers ran in between."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, update

from db.bootstrap import interval
from db.clock import now
from db.tables import Batch, Comparison


@dataclass(frozen=True, slots=True)
class NewComparison:
    """A row of `comparisons`, as a worker measured it."""

    batch_id: str
    block: int
    rows_in_flight: int
    batches_in_flight: int
    plain_steps: int
    plain_tokens: int
    plain_seconds: float
    speculative_steps: int
    speculative_tokens: int
    speculative_seconds: float


def record(conn: Connection, worker_id: str, comparisons: Sequence[NewComparison]) -> None:
    """Store them, and bring the speed-up of their batches up to date; what was stored before is replaced."""
    time = now(conn)
    for batch_id in sorted({comparison.batch_id for comparison in comparisons}):
        # Locked, so that of two workers the second sees what the first has stored.
        lock = select(Batch.id).where(Batch.id == batch_id).with_for_update()
        if conn.execute(lock).scalar() is None:  # pruned meanwhile
            continue
        rows = [asdict(comparison) for comparison in comparisons if comparison.batch_id == batch_id]
        again = (Comparison.batch_id == batch_id, Comparison.worker_id == worker_id)
        blocks = {row["block"] for row in rows}
        conn.execute(delete(Comparison).where(*again, Comparison.block.in_(blocks)))
        conn.execute(
            insert(Comparison), [row | {"worker_id": worker_id, "measured_at": time} for row in rows]
        )
        _update(conn, batch_id)


def block_speedups(conn: Connection, batch_id: str) -> list[float]:
    """For each block: the seconds that plain steps take for the tokens of the speculative ones, by theirs."""
    needed: defaultdict[tuple[str, int], float] = defaultdict(float)
    taken: defaultdict[tuple[str, int], float] = defaultdict(float)
    for row in conn.execute(select(Comparison.__table__).where(Comparison.batch_id == batch_id)):
        block = row.worker_id, row.block
        needed[block] += row.speculative_tokens * row.plain_seconds / row.plain_tokens
        taken[block] += row.speculative_seconds
    return [needed[block] / taken[block] for block in sorted(needed)]


def _update(conn: Connection, batch_id: str) -> None:
    speedups = block_speedups(conn, batch_id)
    low, high = interval(speedups) if len(speedups) > 1 else (None, None)
    values = {
        Batch.speedup_vs_baseline: statistics.median(speedups),
        Batch.speedup_low: low,
        Batch.speedup_high: high,
    }
    conn.execute(update(Batch).where(Batch.id == batch_id).values(values))
