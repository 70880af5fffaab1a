"""Prompts of several batches by status, for lists."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from db.tables import Prompt, PromptStatus


def counts_by_status(conn: Connection, batch_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """For each batch every status, also those that no prompt has."""
    found = {batch_id: {status.value: 0 for status in PromptStatus} for batch_id in batch_ids}
    query = select(Prompt.batch_id, Prompt.status, func.count()).where(Prompt.batch_id.in_(batch_ids))
    for batch_id, status, count in conn.execute(query.group_by(Prompt.batch_id, Prompt.status)):
        found[batch_id][status] = count
    return found
