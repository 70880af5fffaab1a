"""What the tests of the database start from: batches, workers and answers, in a line each."""

from typing import Any

from sqlalchemy import Connection, Engine, select

from db import batches, fleet, queue
from db.acceptance import acceptance_columns
from db.batches import NewBatch, NewPrompt
from db.connect import reading, writing
from db.queue import Claimed, Lease, Success
from db.tables import Prompt

PAIR = "tiny"
LEASE_SECONDS = 60.0


def new_batch(**changes: Any) -> NewBatch:
    values: dict[str, Any] = {
        "name": None,
        "source_key": "source",
        "pair": PAIR,
        "pair_fingerprint": "f00d",
        "sampling": {"temperature": 0.5},
        "metadata": {},
        "priority": 1,
        "deadline": None,
        "completion_window": None,
        "seed": 7,
    }
    return NewBatch(**values | changes)


def new_prompt(custom_id: str, **changes: Any) -> NewPrompt:
    values: dict[str, Any] = {
        "custom_id": custom_id,
        "source_path": "prompts.jsonl",
        "source_line": 1,
        "messages": None,
        "text": f"Say {custom_id}.",
        "chat_template_kwargs": None,
        "sampling": None,
        "n": 1,
        "metadata": None,
        "content_key": f"content of {custom_id}",
    }
    return NewPrompt(**values | changes)


def submitted(database: Engine, *custom_ids: str, n: int = 1, **changes: Any) -> str:
    """A sealed batch with these prompts."""
    with writing(database) as conn:
        batch_id = batches.create(conn, new_batch(**changes))
        batches.add_prompts(conn, batch_id, 0, [new_prompt(name, n=n) for name in custom_ids])
        batches.seal(conn, batch_id, [], 0)
    return batch_id


def worker(database: Engine, worker_id: str = "worker-1", **changes: Any) -> str:
    """A registered worker process."""
    values: dict[str, Any] = {
        "id": worker_id,
        "host": "alpha",
        "pid": 100,
        "device": "cpu",
        "device_name": "a CPU",
        "device_uuid": None,
        "pair": PAIR,
        "pair_fingerprint": "f00d",
        "slots": 2,
        "max_rows": 8,
        "versions": {"specmill": "0.1.0"},
    }
    with writing(database) as conn:
        fleet.register_worker(conn, **values | changes)
    return worker_id


def claimed(
    database: Engine, limit: int = 10, owner: str = "worker-1", lease_seconds: float = LEASE_SECONDS
) -> list[Claimed]:
    with writing(database) as conn:
        return queue.claim(conn, PAIR, owner, limit, lease_seconds)


def sample(**changes: Any) -> dict[str, Any]:
    """A sample's columns: 10 tokens, of which 6 were accepted of 8 drafted in 4 steps."""
    values: dict[str, Any] = {
        "sample_index": 0,
        "text": "an answer",
        "finish_reason": "stop",
        "seed": 7,
        "prompt_tokens": 5,
        "completion_tokens": 10,
        "cached_tokens": 0,
        "queue_seconds": 1.0,
        "prefill_seconds": 0.1,
        "first_token_seconds": 0.2,
        "decode_seconds": 0.8,
        "total_seconds": 2.0,
        "method": "prompt_lookup",
        "spec_disabled_reason": None,
        "num_steps": 4,
        "num_spec_steps": 4,
        "rows_in_flight": 2.0,
        "quality_flag": None,
        "logprobs": None,
        **acceptance_columns(8, 6, 4, [0, 2, 2]),
    }
    return values | changes


def success(lease: Lease, **changes: Any) -> Success:
    return Success(lease, "<user>Say it.", [sample(**changes)])


def answered(database: Engine, prompts: list[Claimed], owner: str = "worker-1", **changes: Any) -> set[int]:
    """These prompts completed, each with one sample; the ids that were accepted."""
    with writing(database) as conn:
        return queue.complete(conn, owner, [success(prompt.lease, **changes) for prompt in prompts], [])


def prompt_row(database: Engine, custom_id: str) -> Any:
    """The row of the only prompt that has this custom_id."""
    with reading(database) as conn:
        return conn.execute(select(Prompt).where(Prompt.custom_id == custom_id)).one()


def statuses(conn: Connection, batch_id: str) -> dict[str, str]:
    """custom_id -> status."""
    query = select(Prompt.custom_id, Prompt.status).where(Prompt.batch_id == batch_id)
    return dict(conn.execute(query.order_by(Prompt.position)).all())
