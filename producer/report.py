"""`producer report`: what a batch came to, as text or JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from db import batches
from db.connect import reading
from db.reports import Percentiles, Report, report
from producer.console import emit, emit_json, plural
from producer.database import open_database
from producer.progress import clock
from worker.wire.sampling import NEUTRAL


def show_report(reference: str, as_json: bool) -> None:
    engine = open_database()
    with reading(engine) as conn:
        found = report(conn, batches.get(conn, reference).id)
    if as_json:
        emit_json(asdict(found))
    else:
        emit(as_text(found))


def as_text(found: Report) -> str:
    sections = (_summary, _times, _speculation, _endings, _flagged, _failures, _slowest, _workers)
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section(found))))


def _summary(found: Report) -> Iterator[str]:
    yield f"Batch {found.batch_id}" + (f" ({found.name})" if found.name else "")
    yield f"  pair      {found.pair}, fingerprint {found.pair_fingerprint}"
    state = f"paused, {found.status}" if found.paused else found.status
    yield f"  status    {state}, {clock(found.wall_seconds)} {'taken' if found.ended_at else 'so far'}"
    said = {name: value for name, value in found.sampling.items() if NEUTRAL.get(name) != value}
    if said:
        yield "  sampling  " + ", ".join(f"{name} {_short(value)}" for name, value in sorted(said.items()))
    states = [f"{count:,} {status}" for status, count in found.prompts.items() if count]
    reused = f"; {found.reused.prompts:,} reused" if found.reused.prompts else ""
    yield f"  prompts   {found.total_prompts:,}: {', '.join(states) or 'none'}{reused}"
    if found.num_input_errors:
        yield f"  left out  {plural(found.num_input_errors, 'bad item')}"
    rate = f", {found.tokens_per_second:,.1f} tokens/s" if found.tokens_per_second else ""
    yield f"  tokens    {found.prompt_tokens:,} read, {found.completion_tokens:,} generated{rate}"


def _times(found: Report) -> Iterator[str]:
    measured = {
        "in the queue": found.queue_seconds,
        "to the first token": found.first_token_seconds,
        "generation": found.generation_seconds,
    }
    rows = [(name, _cells(times)) for name, times in measured.items() if times is not None]
    if rows:
        yield from _table(("Seconds", "p50", "p95", "p99"), [(name, *cells) for name, cells in rows])


def _cells(times: Percentiles) -> tuple[str, str, str]:
    return (f"{times.p50:.2f}", f"{times.p95:.2f}", f"{times.p99:.2f}")


def _speculation(found: Report) -> Iterator[str]:
    if found.drafters:
        rows = [
            (
                drafter.method,
                f"{drafter.samples:,}",
                f"{drafter.completion_tokens:,}",
                f"{drafter.num_steps:,}",
                "-" if drafter.acceptance_length is None else f"{drafter.acceptance_length:.2f}",
                "-" if drafter.acceptance_rate is None else f"{drafter.acceptance_rate:.1%}",
            )
            for drafter in found.drafters
        ]
        header = ("Drafter", "samples", "tokens", "steps", "acceptance length", "acceptance rate")
        yield from _table(header, rows)
    for drafter in found.drafters:
        if drafter.garbled:
            yield f"  {drafter.method} was almost never right: check that it was made for this target"
    for reason, count in found.spec_disabled.items():
        yield f"  off for {plural(count, 'sample')}: {reason}"
    if found.speedup_vs_baseline is not None:
        blocks = plural(found.speedup_blocks, "block")
        yield f"Speed-up over plain decoding: {_speedup(found)}, by {blocks} of plain steps within the job"


def _speedup(found: Report) -> str:
    speedup = f"{found.speedup_vs_baseline:.2f}x"
    if found.speedup_low is None:
        return speedup
    return f"{speedup} (95%: {found.speedup_low:.2f} to {found.speedup_high:.2f})"


def _endings(found: Report) -> Iterator[str]:
    if found.finish_reasons:
        reasons = (f"{reason} {count:,}" for reason, count in found.finish_reasons.items())
        yield "Finish reasons: " + ", ".join(reasons)


def _flagged(found: Report) -> Iterator[str]:
    if found.flagged:
        yield "Flagged"
    for group in found.flagged:
        yield f"  {group.flag}: {plural(group.samples, 'sample')}, such as {', '.join(group.examples)}"
        yield f"    {group.meaning}"


def _failures(found: Report) -> Iterator[str]:
    if found.failures:
        yield "Failed"
    for group in found.failures:
        yield f"  {group.code}: {plural(group.prompts, 'prompt')}"
        for example in group.examples:
            place = example.source_path or ""
            if example.source_line is not None:
                place += f":{example.source_line}"
            yield f"    {example.custom_id} ({place}): {example.message}"
        if group.prompts > len(group.examples):
            yield f"    and {group.prompts - len(group.examples):,} more"


def _slowest(found: Report) -> Iterator[str]:
    if found.slowest:
        rows = [
            (prompt.custom_id, f"{prompt.generation_seconds:.2f}", f"{prompt.completion_tokens:,}")
            for prompt in found.slowest
        ]
        yield from _table(("Slowest", "seconds", "tokens"), rows)


def _workers(found: Report) -> Iterator[str]:
    if len(found.workers) > 1:
        rows = [
            (f"{worker.host} {worker.device}", f"{worker.prompts:,}", f"{worker.completion_tokens:,}")
            for worker in found.workers
        ]
        yield from _table(("Worker", "prompts", "tokens"), rows)


def _short(value: Any) -> str:
    """A schema is not for one line."""
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The first column is a name, the others are numbers."""
    table = [header, *((f"  {row[0]}", *row[1:]) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for name, *cells in table:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((name.ljust(widths[0]), *numbers))
