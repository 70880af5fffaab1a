"""Reading a submission into the database, a chunk at a time: whatever its size, memory stays small."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from db import batches
from db.batches import NewBatch, NewPrompt
from db.connect import writing
from producer.errors import ProducerError
from producer.inputs import BadItem, Item
from producer.keys import content_key

CHUNK = 1000  # prompts a transaction: others get to write in between
MAX_KEPT_ERRORS = 1000  # bad items that a batch's row names; all are counted


@dataclass(slots=True)
class BadItems:
    """Bad items as they come: all counted, the first ones kept."""

    count: int = 0
    kept: list[BadItem] = field(default_factory=list[BadItem])

    def add(self, item: BadItem) -> None:
        self.count += 1
        if len(self.kept) < MAX_KEPT_ERRORS:
            self.kept.append(item)

    def rows(self) -> list[dict[str, Any]]:
        return [{"path": item.path, "line": item.line, "message": item.message} for item in self.kept]


@dataclass(slots=True)
class Staged:
    """What was stored, not yet sealed."""

    batch_id: str
    total: int = 0
    reused: int = 0
    bad: BadItems = field(default_factory=BadItems)
    models: set[str] = field(default_factory=set[str])  # that OpenAI lines asked for


def new_prompts(
    items: Iterable[Item | BadItem], bad: BadItems, batch: NewBatch, n: int
) -> Iterator[tuple[Item, NewPrompt]]:
    """Items as rows, bad ones put aside."""
    for item in items:
        if isinstance(item, BadItem):
            bad.add(item)
            continue
        samples = item.n or n
        sampling: dict[str, Any] = batch.sampling
        yield (
            item,
            NewPrompt(
                custom_id=item.custom_id,
                source_path=item.path,
                source_line=item.line,
                messages=item.messages,
                text=item.text,
                chat_template_kwargs=item.chat_template_kwargs,
                sampling=item.sampling or None,
                n=samples,
                metadata=item.metadata,
                content_key=content_key(item, sampling, samples, batch.pair_fingerprint),
            ),
        )


def chunked(prompts: Iterable[tuple[Item, NewPrompt]]) -> Iterator[list[tuple[Item, NewPrompt]]]:
    chunk: list[tuple[Item, NewPrompt]] = []
    for prompt in prompts:
        chunk.append(prompt)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def stage(
    engine: Engine, batch: NewBatch, items: Iterable[Item | BadItem], n: int, previous: str | None
) -> Staged:
    """Store a batch and its prompts, unsealed: nothing is claimable, and nothing is left after an error."""
    with writing(engine) as conn:
        staged = Staged(batches.create(conn, batch))
    try:
        for chunk in chunked(new_prompts(items, staged.bad, batch, n)):
            prompts = [prompt for _, prompt in chunk]
            with writing(engine) as conn:
                staged.reused += batches.add_prompts(conn, staged.batch_id, staged.total, prompts, previous)
            staged.total += len(prompts)
            staged.models.update(item.model for item, _ in chunk if item.model is not None)
    except IntegrityError:
        # Rows of a batch that is gone: custom_ids are unique by then, so nothing else can be violated.
        raise ProducerError(
            "another submit of the same source took over while this one was storing its prompts; "
            "watch that one: producer list"
        ) from None
    except BaseException:
        discard(engine, staged.batch_id)
        raise
    return staged


def discard(engine: Engine, batch_id: str) -> None:
    with writing(engine) as conn:
        batches.delete(conn, batch_id)
