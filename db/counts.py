"""Counting prompts by status."""

from collections.abc import Sequence

from sqlalchemy import BindParameter, Connection, ScalarSelect, func, select

from db.tables import Batch, Prompt, PromptStatus


def counts_by_status(conn: Connection, batch_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """For each batch every status, also those that no prompt has."""
    found = {batch_id: {status.value: 0 for status in PromptStatus} for batch_id in batch_ids}
    query = select(Prompt.batch_id, Prompt.status, func.count()).where(Prompt.batch_id.in_(batch_ids))
    for batch_id, status, count in conn.execute(query.group_by(Prompt.batch_id, Prompt.status)):
        found[batch_id][status] = count
    return found


def count_in_batch(status: PromptStatus, at_most: int | BindParameter[int]) -> ScalarSelect[int]:
    """In a query of batches: a batch's prompts of one status, counted no further than matters.

    Never an EXISTS or a join: PostgreSQL would plan those for the whole table. The order makes it take the
    index that has it, by a plain scan; a bitmap scan would visit all that match, limit or not, and again and
    again the dead entries that only plain scans mark.
    """
    prompts = (
        select(Prompt.position)
        .where(Prompt.batch_id == Batch.id, Prompt.status == status)
        .order_by(Prompt.position)
        .limit(at_most)
        .correlate(Batch)
    )
    return select(func.count()).select_from(prompts.subquery()).scalar_subquery()
