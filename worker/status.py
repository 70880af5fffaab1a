"""What `worker status` prints: the live workers and what waits for them."""

import json
from dataclasses import asdict
from typing import Any

import click

from db import fleet, queue, schema
from db.connect import connect, reading
from db.settings import DatabaseSettings


def print_status(as_json: bool) -> None:
    db = connect(DatabaseSettings().url())
    schema.check(db)
    with reading(db) as conn:
        workers = fleet.live_workers(conn)
        names = {worker.pair for worker in workers} | {pair.name for pair in fleet.list_pairs(conn)}
        pending = {name: queue.pending_count(conn, name) for name in sorted(names)}
    if as_json:
        listed: dict[str, Any] = {"workers": [asdict(worker) for worker in workers], "pending": pending}
        click.echo(json.dumps(listed, default=str, indent=2))
        return
    if not workers:
        click.echo("no worker is alive; start one with: worker start --devices all")
    for worker in workers:
        activity = worker.activity
        click.echo(
            f"{worker.id}  {worker.host}:{worker.pid}  {worker.device} ({worker.device_name})  "
            f"{worker.pair}  {worker.state}  {activity.get('rows_in_flight', 0)}/{worker.max_rows} rows  "
            f"{activity.get('tokens_per_second', 0)} tokens/s"
        )
    for name, count in pending.items():
        click.echo(f"{name}: {count} prompts pending")
