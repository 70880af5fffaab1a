"""A batch ends once, when its last prompt has."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from sqlalchemy import Engine, update

from db import batches, queue
from db.connect import connect, writing
from db.queue import Failed
from db.tables import Batch, BatchStatus
from tests.db.given import answered, claimed, submitted, worker


def test_a_batch_ends_with_its_last_prompt_and_only_then(database: Engine) -> None:
    batch_id = submitted(database, "a", "b")
    worker(database)
    a, b = claimed(database)
    answered(database, [a])
    with writing(database) as conn:
        assert queue.finish_batches(conn) == []
    answered(database, [b])

    with writing(database) as conn:
        assert queue.finish_batches(conn) == [batch_id]
        assert queue.finish_batches(conn) == []
        batch = batches.get(conn, batch_id)

    assert batch.status == BatchStatus.COMPLETED
    assert batch.completed_at is not None
    assert batch.finalizing_at == batch.completed_at


def test_a_batch_whose_prompts_all_failed_is_completed(database: Engine) -> None:
    batch_id = submitted(database, "a")
    [prompt] = claimed(database)
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(prompt.lease, "bad", "no")])
        assert queue.finish_batches(conn) == [batch_id]
        assert batches.get(conn, batch_id).status == BatchStatus.COMPLETED


def test_a_batch_being_cancelled_ends_as_cancelled(database: Engine) -> None:
    batch_id = submitted(database, "a")
    worker(database)
    prompts = claimed(database)
    with writing(database) as conn:
        conn.execute(update(Batch).values(status=BatchStatus.CANCELLING))
    answered(database, prompts)
    with writing(database) as conn:
        assert queue.finish_batches(conn) == [batch_id]
        batch = batches.get(conn, batch_id)
    assert batch.status == BatchStatus.CANCELLED
    assert batch.cancelled_at is not None


def test_a_batch_without_prompts_is_completed_when_it_is_sealed(database: Engine) -> None:
    batch_id = submitted(database)
    with writing(database) as conn:
        assert batches.get(conn, batch_id).status == BatchStatus.COMPLETED


def test_workers_that_end_a_batch_together_end_it_once(database_url: str, database: Engine) -> None:
    """Each completes its share, commits, and asks; whatever the interleaving, one of them is told."""
    workers, rounds = 4, 5
    for number in range(workers):
        worker(database, f"worker-{number}")

    def complete_and_ask(owner: str, mine: list[queue.Claimed], together: Barrier) -> int:
        engine = connect(database_url)
        together.wait()
        answered(engine, mine, owner)
        with writing(engine) as conn:
            told = len(queue.finish_batches(conn))
        engine.dispose()
        return told

    for _ in range(rounds):
        submitted(database, *(f"p{number}" for number in range(workers)))
        owners = [f"worker-{number}" for number in range(workers)]
        shares = [claimed(database, limit=1, owner=owner) for owner in owners]
        together = Barrier(workers)
        with ThreadPoolExecutor(workers) as pool:
            told = pool.map(complete_and_ask, owners, shares, [together] * workers)
            assert sum(told) == 1
