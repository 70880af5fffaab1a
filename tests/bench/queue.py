"""How many prompts a second the machinery moves: `make bench-queue`.

Two real worker processes, a real Valkey, and an engine that answers at once: what is measured is everything
else, from the claim (of 64) to the completed row. Then claims alone, behind a million queued prompts.
"""

import time

from sqlalchemy import func, select

from db.batches import NewPrompt
from db.connect import reading
from db.tables import Prompt, Worker
from tests.bench import claims
from tests.faults import table
from tests.faults.site import run_site, until

PROMPTS = 30_000
PROCESSES = 2
ROWS = 32  # a worker claims for twice its rows: 64
TARGETS = {"postgres": 3_000, "sqlite": 2_000}  # prompts/s


def measure(database: str) -> float:
    """Prompts a second, from the first claim to the last completion, by the database's clock."""
    with run_site(
        database,
        processes=PROCESSES,
        max_rows=ROWS,
        lease_seconds=60,
        witness=False,
        answer=table.answer,
        SPECMILL_FAULTS_STEP="0",
    ) as site:
        prompts = [
            NewPrompt(f"p{i}", None, None, None, f"prompt {i}", None, None, 1, None, str(i))
            for i in range(PROMPTS)
        ]
        batch_id = site.submit(prompts)
        time.sleep(1)
        site.ring(16)
        until(lambda: not site.is_open(batch_id), "the batch ends", 300)
        with reading(site.db) as conn:
            first, last = conn.execute(select(func.min(Prompt.claimed_at), func.max(Prompt.ended_at))).one()
            assert conn.execute(select(func.count()).select_from(Worker)).scalar_one() == PROCESSES
        return PROMPTS / (last - first).total_seconds()


def main() -> None:
    print(f"{PROMPTS:,} prompts, {PROCESSES} worker processes, an engine that answers at once")
    for database, target in TARGETS.items():
        print(f"{database:12} {measure(database):10,.0f} prompts/s   (target {target:,})", flush=True)
    claims.main()


if __name__ == "__main__":
    main()
