"""`producer status`, `watch` and `list`."""

from dataclasses import asdict
from typing import Any

from db import batches
from db.batches import BatchRow
from db.connect import reading
from db.counts import counts_by_status
from db.fleet import live_workers
from db.reports import Progress, progress
from db.tables import OPEN_BATCH
from producer.console import emit, emit_json, say, warn
from producer.database import open_database
from producer.exits import Exit, exit_for
from producer.priorities import priority_name
from producer.progress import Pace, describe
from producer.waiting import wait


def show_status(reference: str, as_json: bool) -> Exit:
    engine = open_database()
    with reading(engine) as conn:
        batch = batches.get(conn, reference)
        current = progress(conn, batch.id)
        workers = live_workers(conn, batch.pair)
    if as_json:
        emit_json(_as_json(batch, current) | {"live_workers": len(workers)})
    else:
        pace = Pace()
        pace.see(current)
        emit(f"{batch.id}  {batch.status}  {describe(current, pace, workers)}")
    return exit_for(current.status, current.prompts, batch.num_input_errors)


def watch(reference: str) -> Exit:
    engine = open_database()
    with reading(engine) as conn:
        batch = batches.get(conn, reference)
        served = bool(live_workers(conn, batch.pair))
    if not served and batch.status in OPEN_BATCH:
        warn(f'no live worker serves pair "{batch.pair}"; start one, or submit the same again to run it here')
    try:
        current = wait(engine, batch.id, batch.pair)
    except KeyboardInterrupt:
        say(f"no longer watching; the batch goes on: producer watch {batch.id}")
        return Exit.INTERRUPTED
    say(f"{batch.id} is {current.status}: producer report {batch.id}")
    return exit_for(current.status, current.prompts, batch.num_input_errors)


def show_list(limit: int, as_json: bool) -> None:
    engine = open_database()
    with reading(engine) as conn:
        recent = batches.list_recent(conn, limit)
        counts = counts_by_status(conn, [batch.id for batch in recent])
    if as_json:
        emit_json([_facts(batch) | {"prompts": counts[batch.id]} for batch in recent])
        return
    if not recent:
        say("no batches yet: producer submit PATH")
        return
    rows = [("BATCH", "STATUS", "DONE", "FAILED", "PAIR", "CREATED", "NAME")]
    for batch in recent:
        states = counts[batch.id]
        total = sum(states.values())
        done = total - states["pending"] - states["running"]
        created = f"{batch.created_at:%Y-%m-%d %H:%M:%S}Z"
        numbers = (f"{done:,}/{total:,}", f"{states['failed']:,}")
        status = batch.status if batch.paused_at is None else f"{batch.status}, paused"
        rows.append((batch.id, status, *numbers, batch.pair, created, batch.name or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        emit("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _facts(batch: BatchRow) -> dict[str, Any]:
    return {
        "id": batch.id,
        "name": batch.name,
        "status": batch.status,
        "paused": batch.paused_at is not None,
        "priority": priority_name(batch.priority),
        "pair": batch.pair,
        "created_at": batch.created_at.isoformat(),
        "deadline": None if batch.deadline is None else batch.deadline.isoformat(),
        "metadata": batch.metadata,
        "num_input_errors": batch.num_input_errors,
    }


def _as_json(batch: BatchRow, current: Progress) -> dict[str, Any]:
    derived = {"total": current.total, "done": current.done, "acceptance_length": current.acceptance_length}
    return _facts(batch) | asdict(current) | derived
