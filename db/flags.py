"""Samples that a person should look at, and why."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from db.tables import Prompt, QualityFlag, Sample

EXAMPLES = 3

MEANINGS = {
    QualityFlag.REPEATS.value: "the output ends in a loop of a few tokens: it is hardly what was asked for, "
    "and its high acceptance says nothing of other text",
    QualityFlag.GARBLED.value: "the drafting model was almost never right: check that it was made for this "
    "target, in this revision and dtype",
}


@dataclass(frozen=True, slots=True)
class FlaggedGroup:
    """Samples with the same flag, the prompts of the first of them as examples."""

    flag: str
    meaning: str
    samples: int
    examples: list[str]  # custom_ids


def flagged(conn: Connection, batch_id: str) -> list[FlaggedGroup]:
    """What this batch generated itself, the most frequent flag first."""
    of_batch = (Prompt.batch_id == batch_id, Sample.prompt_id == Prompt.id)
    counts = select(Sample.quality_flag, func.count()).where(*of_batch).group_by(Sample.quality_flag)
    groups: list[FlaggedGroup] = []
    for flag, count in conn.execute(counts.order_by(func.count().desc(), Sample.quality_flag)).all():
        if flag is None:  # nothing to be said of these
            continue
        first = select(Prompt.custom_id).where(*of_batch, Sample.quality_flag == flag).distinct()
        first = first.add_columns(Prompt.position).order_by(Prompt.position).limit(EXAMPLES)
        groups.append(
            FlaggedGroup(flag, MEANINGS.get(flag, flag), count, list(conn.execute(first).scalars()))
        )
    return groups
