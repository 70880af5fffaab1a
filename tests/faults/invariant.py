"""What must hold once a batch has ended, whatever happened meanwhile (the queue's invariant)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, select, text

from db.connect import reading
from db.tables import TERMINAL_PROMPT, Batch, Prompt, Sample
from tests.faults import audit


@dataclass(frozen=True)
class Expected:
    """`answer`: the one right text of a prompt's sample. Named prompts may, or must, end otherwise."""

    answer: Callable[[str, int], str]
    statuses: Collection[str] = ("completed",)  # of the batch
    poisonous: Collection[str] = ()  # custom_ids
    times_ended: int = 1
    deaths: int = 0  # of processes: from three on, an innocent prompt may have met them all


@dataclass
class Found:
    """Numbers of a batch that kept the invariant."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    samples: int = 0
    lost: int = 0
    doubled: int = 0
    crashed: int = 0  # leases that ended without their holder
    released: int = 0
    bystanders: int = 0  # innocent, and failed as poison


def check(db: Engine, batch_id: str, expected: Expected) -> tuple[Found, list[str]]:
    """What was found, and a line for every breach of the invariant."""
    with reading(db) as conn:
        return _check(conn, batch_id, expected)


def _check(conn: Connection, batch_id: str, expected: Expected) -> tuple[Found, list[str]]:
    batch = conn.execute(select(Batch.__table__).where(Batch.id == batch_id)).one()
    prompts = conn.execute(select(Prompt.__table__).where(Prompt.batch_id == batch_id)).all()
    samples: dict[int, list[Any]] = defaultdict(list)
    query = select(Sample.__table__).join(Prompt, Prompt.id == Sample.prompt_id)
    for sample in conn.execute(query.where(Prompt.batch_id == batch_id)):
        samples[sample.prompt_id].append(sample)
    found = Found(Counter(prompt.status for prompt in prompts))
    breaches: list[str] = []
    if batch.status not in expected.statuses:
        breaches.append(f"the batch is {batch.status}, expected {' or '.join(expected.statuses)}")
    if batch.sealed_at is None or getattr(batch, f"{batch.status}_at", None) is None:
        breaches.append(f"the batch is {batch.status} without the time of it")
    for prompt in prompts:
        breaches += _check_prompt(prompt, samples[prompt.id], expected, found)
    if sum(found.statuses[status] for status in TERMINAL_PROMPT) != len(prompts):
        breaches.append(f"the sums differ: {dict(found.statuses)} of {len(prompts)}")
    counted = conn.execute(
        text("SELECT * FROM batch_counts WHERE batch_id = :batch"), {"batch": batch_id}
    ).one()
    if any(getattr(counted, status) != found.statuses[status] for status in TERMINAL_PROMPT):
        breaches.append(f"the view counts {counted}, the rows {dict(found.statuses)}")
    ends = audit.ends(conn, batch_id)
    if len(ends) != expected.times_ended:
        breaches.append(f"the batch ended {len(ends)} times: {ends}, expected {expected.times_ended}")
    breaches += [f"no such move: {move}" for move in audit.illegal_moves(conn, batch_id)]
    found.crashed = sum(prompt.crashes for prompt in prompts)
    found.released = audit.count_moves(conn, batch_id, "running", "pending")
    return found, breaches


def _check_prompt(prompt: Any, samples: list[Any], expected: Expected, found: Found) -> list[str]:
    breaches: list[str] = []

    def breach(what: str) -> None:
        breaches.append(f"{prompt.custom_id} ({prompt.status}, attempt {prompt.attempt}): {what}")

    if prompt.owner is not None or prompt.lease_until is not None:
        breach(f"a lease is live: {prompt.owner} until {prompt.lease_until}")
    if prompt.ended_at is None:
        breach("it has no end")
    indices = sorted(sample.sample_index for sample in samples)
    found.samples += len(samples)
    match prompt.status:
        case "succeeded":
            if missing := set(range(prompt.n)) - set(indices):
                found.lost += 1
                breach(f"samples {sorted(missing)} are lost")
            if len(indices) > prompt.n:
                found.doubled += 1
                breach(f"{len(indices)} samples, {prompt.n} were wanted")
            if {sample.attempt for sample in samples} - {prompt.attempt}:
                breach(f"samples of attempts {sorted({sample.attempt for sample in samples})}")
            if prompt.custom_id in expected.poisonous:
                breach("a poisonous prompt cannot succeed")
            for sample in samples:
                right = expected.answer(prompt.text, sample.sample_index)
                if sample.text != right:
                    breach(f"sample {sample.sample_index} is {sample.text!r}, expected {right!r}")
        case "failed":
            poisonous = prompt.custom_id in expected.poisonous
            bystander = prompt.error_code == "poison" and not poisonous
            found.bystanders += bystander
            if not poisonous and not (bystander and expected.deaths >= 3):
                breach(f"failed with {prompt.error_code}: {prompt.error_message}")
        case "cancelled" | "expired":
            if prompt.status not in expected.statuses:
                breach("nobody asked for that")
    if prompt.status != "succeeded" and samples:
        breach(f"it has {len(samples)} samples")
    return breaches
