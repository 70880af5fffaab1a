"""A worker's part, done by hand through the queue: real rows without a model."""

from collections.abc import Container, Sequence
from typing import Any

from sqlalchemy import Engine

from db import fleet, queue
from db.connect import writing
from db.queue import Claimed, Failed
from tests.db.given import success
from worker.wire.pairs import fingerprint, get_pair

PAIR = "smollm2"


def register(engine: Engine, worker_id: str = "worker-1", pair_fingerprint: str | None = None) -> str:
    """A live worker of the default pair."""
    with writing(engine) as conn:
        fleet.register_worker(
            conn, id=worker_id, host="alpha", pid=1, device="cpu", device_name="a CPU", device_uuid=None,
            pair=PAIR, pair_fingerprint=pair_fingerprint or fingerprint(get_pair(PAIR)), slots=2, max_rows=8,
            versions={},
        )  # fmt: skip
    return worker_id


def work(
    engine: Engine, failing: Container[str] = (), limit: int = 1000, **columns: Any
) -> Sequence[Claimed]:
    """Claim and end what is pending: "an answer" for each sample, or a failure for those named."""
    with writing(engine) as conn:
        if not fleet.live_workers(conn):
            conn.rollback()
            register(engine)
    with writing(engine) as conn:
        claimed = queue.claim(conn, PAIR, "worker-1", limit, 60)
    good = [prompt for prompt in claimed if prompt.custom_id not in failing]
    with writing(engine) as conn:
        successes = [
            queue.Success(
                prompt.lease,
                "<user>as seen",
                [
                    dict(success(prompt.lease, **columns).samples[0], sample_index=index)
                    for index in range(prompt.n)
                ],
            )
            for prompt in good
        ]
        failures = [
            Failed(p.lease, "prompt_too_long", "3000 tokens of 2048") for p in claimed if p not in good
        ]
        queue.complete(conn, "worker-1", successes, failures)
    with writing(engine) as conn:
        queue.finish_batches(conn)
    return claimed
