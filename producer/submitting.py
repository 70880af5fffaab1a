"""`producer submit` from its options to its exit code: store, ring, wait, report."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Engine

from db.connect import reading
from db.reports import Progress, report
from db.settings import DatabaseSettings
from producer.announce import announce
from producer.console import emit, emit_json, say, warn
from producer.database import open_database
from producer.exits import Exit, exit_for
from producer.inputs import InputOptions, Reader
from producer.inputs.template import PromptTemplate
from producer.local import require_worker_extra
from producer.local_run import run_locally
from producer.pairing import choose_pair
from producer.report import as_text
from producer.ringing import ring_for
from producer.submit import Submission, Submitted, count_only, submit
from producer.waiting import wait as wait_for
from worker.wire.app import check_broker
from worker.wire.sampling import OptionError, read_options
from worker.wire.settings import WireSettings


def run(
    *,
    paths: tuple[Path, ...],
    pair: str | None,
    sampling: dict[str, Any],
    n: int,
    priority: int,
    completion_window: timedelta | None,
    name: str | None,
    metadata: dict[str, str],
    system: str | None,
    template: Path | None,
    raw: bool,
    limit: int | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    on_error: str,
    fresh: bool,
    dry_run: bool,
    wait: bool | None,
    as_json: bool,
) -> Exit:
    sampling = _checked(sampling)
    prompt_template = PromptTemplate(template) if template else None
    reader = Reader(paths, InputOptions(system, prompt_template, raw, limit, include, exclude))

    if dry_run:
        found = count_only(reader)
        announce(found, reader.skipped)
        if as_json:
            emit_json(summary(found))
        return Exit.INCOMPLETE if found.bad.count else Exit.SUCCEEDED
    settings, wire = DatabaseSettings(), WireSettings()
    broker_url = wire.broker_url.get_secret_value() if wire.broker_url else None
    if broker_url is None:
        require_worker_extra()
    else:
        for warning in check_broker(broker_url):
            warn(warning)
    engine = open_database(settings)
    with reading(engine) as conn:
        chosen = choose_pair(conn, pair or wire.default_pair)
    submission = Submission(
        paths, chosen, name, sampling, n, metadata, priority, completion_window, fresh, on_error == "fail"
    )
    found = submit(engine, submission, reader)
    announce(found, reader.skipped, submission)
    if found.batch_id is None or found.how == "unchanged":
        current = None
    elif broker_url is not None:
        current = _run_in_fleet(engine, broker_url, submission, found.batch_id, bool(wait))
    else:
        current = run_locally(engine, settings, submission, found.batch_id, wait is not False)
    return _conclude(engine, found, current, as_json, on_error)


def _checked(sampling: dict[str, Any]) -> dict[str, Any]:
    """Options as given on the command line; those that were not are None or empty."""
    given = {name: value for name, value in sampling.items() if value not in (None, [], {})}
    try:
        return read_options(given)
    except OptionError as error:
        raise click.UsageError(f"--{error.name.replace('_', '-')}: {error.reason}") from None


def _run_in_fleet(
    engine: Engine, broker_url: str, submission: Submission, batch_id: str, waits: bool
) -> Progress | None:
    pair = submission.pair
    if not pair.live_workers:
        warn(f'no live worker serves pair "{pair.name}"; start one: worker start --pair {pair.name}')
    ring_for(engine, broker_url, pair.name, submission.priority)
    if not waits:
        return None
    try:
        return wait_for(engine, batch_id, pair.name)
    except KeyboardInterrupt:
        say(f"no longer waiting; the fleet goes on with the batch: producer watch {batch_id}")
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None


def _conclude(
    engine: Engine, found: Submitted, current: Progress | None, as_json: bool, on_error: str
) -> Exit:
    """Say what came of it on standard output, the report on standard error, and the exit code."""
    result = None
    if current is not None:
        with reading(engine) as conn:
            result = report(conn, current.batch_id)
        say("\n" + as_text(result))
    if as_json:
        emit_json(summary(found) | {"report": asdict(result) if result else None})
    elif found.batch_id is not None:
        emit(found.batch_id)
    if found.batch_id is None:
        return Exit.ERROR if on_error == "fail" else Exit.INCOMPLETE
    if result is not None:
        return exit_for(result.status, result.prompts, found.bad.count or result.num_input_errors)
    return Exit.INCOMPLETE if found.bad.count else Exit.SUCCEEDED


def summary(found: Submitted) -> dict[str, Any]:
    return {
        "batch_id": found.batch_id,
        "outcome": found.how,
        "prompts": found.total,
        "reused": found.reused,
        "new": found.new,
        "changed": found.changed,
        "removed": found.gone,
        "num_input_errors": found.bad.count,
        "input_errors": found.bad.rows(),
    }
