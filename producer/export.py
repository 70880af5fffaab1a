"""`producer export`: a batch's results, streamed in order of submission."""

import csv
import json
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from sqlalchemy import Engine

from db import batches
from db.batches import BatchRow
from db.connect import reading
from db.reports import progress
from db.results import results
from db.tables import PromptStatus
from producer.console import plural, say, warn
from producer.database import open_database
from producer.errors import ProducerError
from producer.exits import Exit
from producer.formats import CSV_COLUMNS, csv_lines, jsonl_line, openai_line


def export(reference: str, form: str, output: Path | None, errors: Path | None) -> Exit:
    engine = open_database()
    with reading(engine) as conn:
        batch = batches.get(conn, reference)
        current = progress(conn, batch.id)
    if not current.ended:
        warn(f"{batch.id} is {current.status}: {plural(current.total - current.done, 'prompt')} not done yet")
    with _opened(output) as file:
        if form == "csv":
            _export_csv(engine, batch, file)
        elif form == "jsonl":
            for row in results(engine, batch.id):
                _write_line(file, jsonl_line(row))
        else:
            unsuccessful = current.total - current.prompts[PromptStatus.SUCCEEDED]
            _export_openai(engine, batch, file, _errors_file(output, errors, unsuccessful))
    return Exit.SUCCEEDED


def _export_csv(engine: Engine, batch: BatchRow, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in results(engine, batch.id):
        writer.writerows(csv_lines(row))


def _export_openai(engine: Engine, batch: BatchRow, file: TextIO, errors: Path | None) -> None:
    failed = 0
    with ExitStack() as stack:
        # As OpenAI, no error file where nothing failed.
        error_file = stack.enter_context(_opened(errors)) if errors else None
        for row in results(engine, batch.id):
            line = openai_line(batch, row)
            if line["error"] is None:
                _write_line(file, line)
            elif error_file is not None:
                failed += 1
                _write_line(error_file, line)
    if failed:
        say(f"{plural(failed, 'prompt')} without a result in {errors}")


def _errors_file(output: Path | None, errors: Path | None, unsuccessful: int) -> Path | None:
    if errors is not None or not unsuccessful:
        return errors
    if output is None:
        raise click.UsageError(
            f"{plural(unsuccessful, 'prompt')} without a result: name a file for them with --errors"
        )
    return output.with_suffix(".errors.jsonl")


@contextmanager
def _opened(path: Path | None) -> Generator[TextIO]:
    """A file that is whole or not there; without a path, standard output."""
    if path is None:
        yield sys.stdout
        return
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise ProducerError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def _write_line(file: TextIO, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, ensure_ascii=False) + "\n")
