"""`producer show`: one prompt, from what was given to what came out."""

from collections.abc import Iterator
from dataclasses import asdict

from db import batches
from db.connect import reading
from db.results import ResultRow, SampleRow, find_prompt
from producer.console import emit, emit_json
from producer.database import open_database
from producer.errors import ProducerError


def show_prompt(reference: str, custom_id: str, as_json: bool) -> None:
    engine = open_database()
    with reading(engine) as conn:
        batch = batches.get(conn, reference)
        row = find_prompt(conn, batch.id, custom_id)
    if row is None:
        raise ProducerError(f'batch {batch.id} has no prompt "{custom_id}"; see producer export {batch.id}')
    if as_json:
        emit_json(asdict(row))
    else:
        emit("\n".join(_as_text(row)))


def _as_text(row: ResultRow) -> Iterator[str]:
    place = row.source_path or "?"
    if row.source_line is not None:
        place += f":{row.source_line}"
    yield f"{row.custom_id}  {row.status}  ({place})"
    for name, value in (("sampling", row.sampling), ("metadata", row.metadata)):
        if value:
            yield f"{name}: " + ", ".join(f"{key} {inner!r}" for key, inner in value.items())
    if row.error_message:
        yield f"failed: {row.error_code}: {row.error_message}"
    yield "\n--- as given ---"
    for message in row.messages or []:
        yield f"[{message['role']}] {message['content']}"
    if row.text is not None:
        yield row.text
    yield "\n--- as the model saw it ---"
    yield row.rendered if row.rendered is not None else "(not run yet)"
    for sample in row.samples:
        yield f"\n--- sample {sample.sample_index} ({_measured(sample)}) ---"
        yield sample.text


def _measured(sample: SampleRow) -> str:
    parts = [
        sample.finish_reason,
        f"{sample.completion_tokens} tokens in {sample.total_seconds - sample.queue_seconds:.2f} s",
        f"seed {sample.seed}",
        sample.method,
    ]
    if sample.mean_acceptance_length is not None:
        parts.append(f"acceptance length {sample.mean_acceptance_length:.2f}")
    return ", ".join(parts)
