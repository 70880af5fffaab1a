"""How long a claim of 64 takes in PostgreSQL behind a million queued prompts, and by which plan."""

import itertools
import time
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from db import batches, queue, schema
from db.batches import NewPrompt
from db.connect import connect, writing
from tests.db.given import PAIR, new_batch, success, worker
from tests.servers import run_postgres

QUEUED = 1_000_000
BATCHES = 10
CLAIMS = 1_000
CLAIM = 64
TARGET = 0.050  # seconds, p99


def fill(db: Engine) -> None:
    """Like a submission, but copied within the server."""
    columns = [
        column.name for column in queue.Prompt.__table__.columns if column.name not in ("id", "position")
    ]
    copied = ", ".join("'p' || number" if name == "custom_id" else name for name in columns)
    for _ in range(BATCHES):
        with writing(db) as conn:
            batch_id = batches.create(conn, new_batch())
            prompt = NewPrompt("p0", None, None, None, "Say it.", None, None, 1, None, "0")
            batches.add_prompts(conn, batch_id, 0, [prompt])
            conn.execute(
                text(
                    f"INSERT INTO prompts (position, {', '.join(columns)}) SELECT number, {copied} "
                    "FROM prompts, generate_series(1, :last) AS number "
                    "WHERE batch_id = :batch AND position = 0"
                ),
                {"last": QUEUED // BATCHES - 1, "batch": batch_id},
            )
            batches.seal(conn, batch_id, [], 0)


def claim_and_complete(db: Engine) -> list[float]:
    """Seconds of each claim, its commit included. Completions between them leave their dead rows behind."""
    seconds: list[float] = []
    for _ in range(CLAIMS):
        began = time.perf_counter()
        with writing(db) as conn:
            limit = queue.claim_limit(conn, PAIR, CLAIM)
            claimed = queue.claim(conn, PAIR, "worker-1", limit, 60)
        seconds.append(time.perf_counter() - began)
        assert len(claimed) == CLAIM
        with writing(db) as conn:
            queue.complete(conn, "worker-1", [success(prompt.lease) for prompt in claimed], [])
    return sorted(seconds)


def explain(db: Engine) -> list[str]:
    """The plan of every statement of a claim, as the server runs it; and what it would scan for each."""
    plans: list[str] = []
    statements: list[tuple[str, Any]] = []

    def note(_conn: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    with db.connect() as conn:
        event.listen(conn, "before_cursor_execute", note)
        queue.claim(conn, PAIR, "worker-1", CLAIM, 60)
        event.remove(conn, "before_cursor_execute", note)
        conn.rollback()
        for statement, parameters in statements:
            if "prompts" in statement:
                rows = conn.exec_driver_sql(f"EXPLAIN {statement}", parameters)
                plans += [row[0] for row in rows]
        conn.rollback()
    return plans


def main() -> None:
    with run_postgres() as url:
        db = connect(url)
        schema.upgrade(db)
        worker(db)
        fill(db)
        seconds = claim_and_complete(db)
        p50, p99 = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
        print(f"{QUEUED:,} queued prompts in PostgreSQL, {CLAIMS:,} claims of {CLAIM}")
        print(
            f"p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, longest {1000 * seconds[-1]:.1f} ms   "
            f"(target: p99 under {1000 * TARGET:.0f} ms)"
        )
        scans = [line.strip() for line in explain(db) if "Scan" in line]
        print("scans of a claim:", *sorted(k for k, _ in itertools.groupby(sorted(scans))), sep="\n  ")
        assert not any(line.split("->")[-1].strip().startswith("Seq Scan on prompts") for line in scans)
        db.dispose()


if __name__ == "__main__":
    main()
