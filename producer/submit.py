"""What `producer submit` does with a source: a new batch, the unfinished one, or nothing at all."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from db import batches
from db.batches import BatchRow, NewBatch
from db.connect import reading, writing
from db.reports import progress
from db.tables import OPEN_BATCH
from producer.inputs import BadItem, InputError, Item
from producer.inputs.files import EXPECTED
from producer.keys import source_key
from producer.pairing import ChosenPair
from producer.staging import BadItems, chunked, discard, new_prompts, stage
from worker.wire.sampling import MAX_SEED

Items = Iterable[Item | BadItem]


@dataclass(frozen=True, slots=True)
class Submission:
    """A source and how to run it."""

    paths: Sequence[Path]
    pair: ChosenPair
    name: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict[str, Any])  # as given, for every prompt
    n: int = 1
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    priority: int = 1
    completion_window: timedelta | None = None
    fresh: bool = False
    refuse_bad: bool = False  # --on-error fail

    def new_batch(self) -> NewBatch:
        seed = self.sampling.get("seed")
        return NewBatch(
            name=self.name,
            source_key=source_key(self.name, self.paths, self.pair.fingerprint),
            pair=self.pair.name,
            pair_fingerprint=self.pair.fingerprint,
            sampling=self.sampling,
            metadata=dict(self.metadata),
            priority=self.priority,
            deadline=None,
            completion_window=self.completion_window,
            seed=secrets.randbelow(MAX_SEED + 1) if seed is None else seed,
        )


@dataclass(slots=True)
class Submitted:
    """What came of it. `batch_id` is None where every item was bad."""

    batch_id: str | None
    how: str  # "new", "continued", "unchanged" or "refused"
    total: int = 0
    reused: int = 0
    new: int = 0  # beside what the continued batch holds
    changed: int = 0
    gone: int = 0
    bad: BadItems = field(default_factory=BadItems)
    models: set[str] = field(default_factory=set[str])


def submit(engine: Engine, submission: Submission, items: Items) -> Submitted:
    """Store what is new of a source; its items are read once."""
    batch = submission.new_batch()
    previous = None if submission.fresh else _previous(engine, batch.source_key)
    if previous is not None and previous.status in OPEN_BATCH:
        return _continue(engine, previous, batch, submission.n, items)
    staged = stage(engine, batch, items, submission.n, previous.id if previous else None)
    found = Submitted(
        staged.batch_id, "new", staged.total, staged.reused, bad=staged.bad, models=staged.models
    )
    if staged.total == 0 or (staged.bad.count and submission.refuse_bad):
        discard(engine, staged.batch_id)
        if staged.total == staged.bad.count == 0:
            raise InputError(nothing_found(submission.paths))
        found.batch_id, found.how = None, "refused"
    elif previous is not None and staged.reused == staged.total:
        discard(engine, staged.batch_id)
        found.batch_id, found.how = previous.id, "unchanged"
    else:
        with writing(engine) as conn:
            batches.seal(conn, staged.batch_id, staged.bad.rows(), staged.bad.count)
    return found


def _previous(engine: Engine, key: str) -> BatchRow | None:
    """The latest sealed batch of a source. An unsealed one was cut off while it was stored: nothing of it was
    claimable and nobody was told its id, so it is stored again from the beginning."""
    while True:
        with writing(engine) as conn:
            latest = batches.find_latest(conn, key)
            if latest is None or latest.sealed_at is not None:
                return latest
            batches.delete(conn, latest.id)


def _continue(engine: Engine, running: BatchRow, batch: NewBatch, n: int, items: Items) -> Submitted:
    """Compare with the batch that is under way; what differs waits for the submit after its end."""
    found = Submitted(running.id, "continued")
    same = 0
    for chunk in chunked(new_prompts(items, found.bad, batch, n)):
        keys = [(prompt.custom_id, prompt.content_key) for _, prompt in chunk]
        with reading(engine) as conn:
            matches = batches.match_prompts(conn, running.id, keys)
        found.total += len(chunk)
        found.new += len(chunk) - len(matches)
        found.changed += sum(not match.same_content for match in matches.values())
        same += len(matches)
    with reading(engine) as conn:
        found.gone = progress(conn, running.id).total - same
    return found


def nothing_found(paths: Sequence[Path]) -> str:
    places = ", ".join(str(path) for path in paths)
    return f"no prompts in {places}; {EXPECTED}"


def count_only(items: Items) -> Submitted:
    """--dry-run: read everything, store nothing."""
    found = Submitted(None, "dry run")
    for item in items:
        if isinstance(item, BadItem):
            found.bad.add(item)
        else:
            found.total += 1
            if item.model is not None:
                found.models.add(item.model)
    return found
