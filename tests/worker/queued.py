"""A batch in the database, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, select, update

from db import batches
from db.batches import NewBatch, NewPrompt
from db.connect import reading, writing
from db.tables import Batch, Prompt, Sample, Worker


@dataclass(frozen=True)
class Queued:
    db: Engine
    id: str

    def prompts(self) -> list[Any]:
        query = select(Prompt.__table__).where(Prompt.batch_id == self.id).order_by(Prompt.position)
        return rows(self.db, query)

    def samples(self) -> list[Any]:
        query = select(Prompt.custom_id, Sample.__table__).join(Sample, Sample.prompt_id == Prompt.id)
        return rows(
            self.db, query.where(Prompt.batch_id == self.id).order_by(Prompt.position, Sample.sample_index)
        )

    def statuses(self) -> list[str]:
        return [prompt.status for prompt in self.prompts()]

    @property
    def batch(self) -> Any:
        return rows(self.db, select(Batch.__table__).where(Batch.id == self.id))[0]

    def take_away(self, custom_id: str) -> None:
        """What the reaper does with a prompt whose lease ended: its holder lost it."""
        with writing(self.db) as conn:
            conn.execute(
                update(Prompt)
                .where(Prompt.batch_id == self.id, Prompt.custom_id == custom_id)
                .values(status="pending", attempt=Prompt.attempt + 1, owner=None, lease_until=None)
            )


def submit(
    db: Engine,
    prompts: Sequence[dict[str, Any]],
    pair: str = "tiny",
    fingerprint: str = "0" * 16,
    sampling: dict[str, Any] | None = None,
    seed: int = 7,
) -> Queued:
    """A sealed batch of prompts, each given as what differs from a short question."""
    with writing(db) as conn:
        batch = NewBatch(None, "source", pair, fingerprint, sampling or {}, {}, 1, None, None, seed)
        batch_id = batches.create(conn, batch)
        new = [_prompt(number, differs) for number, differs in enumerate(prompts)]
        batches.add_prompts(conn, batch_id, 0, new)
        batches.seal(conn, batch_id, [], 0)
    return Queued(db, batch_id)


def workers(db: Engine) -> list[Any]:
    return rows(db, select(Worker.__table__).order_by(Worker.started_at))


def rows(db: Engine, query: Any) -> list[Any]:
    with reading(db) as conn:
        return list(conn.execute(query))


def _prompt(number: int, differs: dict[str, Any]) -> NewPrompt:
    values: dict[str, Any] = {
        "custom_id": f"p{number}",
        "source_path": None,
        "source_line": None,
        "messages": None,
        "text": f"question {number}" if "messages" not in differs else None,
        "chat_template_kwargs": None,
        "sampling": None,
        "n": 1,
        "metadata": None,
        "content_key": str(number),
    }
    return NewPrompt(**values | differs)
