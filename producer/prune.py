"""`producer prune`: old batches go; what is left, and why, is said."""

import sys
from datetime import timedelta
from typing import Any

import click
from sqlalchemy import Engine

from db.connect import reading, writing
from db.pruning import Old, delete_some, exists, old_batches
from producer.console import emit, emit_json, plural, say
from producer.database import open_database

SHOWN = 3  # users of a batch's results that are named


def prune(older_than: timedelta, keep_latest: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    engine = open_database()
    with reading(engine) as conn:
        old = old_batches(conn, older_than, keep_latest)
    going = [batch for batch in old if batch.may_go]
    left = {batch: _reason(batch) for batch in old if not batch.may_go}
    if going and not dry_run and not yes and sys.stdin.isatty():
        for batch in going:
            say(f"  {_line(batch)}")
        click.confirm(f"Delete {_batches(len(going))} with all results?", abort=True, err=True)
    gone = going if dry_run else [batch for batch in going if _delete(engine, batch)]
    left |= {
        batch: "it was retried, or its results reused, meanwhile" for batch in going if batch not in gone
    }
    if as_json:
        emit_json(
            {
                "dry_run": dry_run,
                "deleted": [_facts(batch) for batch in gone],
                "left": [_facts(batch) | {"reason": reason} for batch, reason in left.items()],
            }
        )
        return
    for batch in gone:
        emit(f"{'would delete' if dry_run else 'deleted'} {_line(batch)}")
    for batch, reason in left.items():
        emit(f"left {_line(batch)}: {reason}")
    if not old:
        emit("nothing to delete: no batch ended so long ago")


def _delete(engine: Engine, batch: Old) -> bool:
    """Whether it is gone."""
    more = True
    while more:
        with writing(engine) as conn:
            more = delete_some(conn, batch.id)
    with reading(engine) as conn:
        return not exists(conn, batch.id)


def _reason(batch: Old) -> str:
    if batch.is_latest:
        return "it is the latest of its source"
    named = ", ".join(batch.reused_by[:SHOWN])
    more = len(batch.reused_by) - SHOWN
    return f"its results are reused by {named}" + (f" and {more:,} more" if more > 0 else "")


def _line(batch: Old) -> str:
    name = f" ({batch.name})" if batch.name else ""
    return f"{batch.id}{name}, {plural(batch.prompts, 'prompt')}"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def _facts(batch: Old) -> dict[str, Any]:
    return {"id": batch.id, "name": batch.name, "prompts": batch.prompts}
