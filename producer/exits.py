"""Exit codes, and what of a batch's end they say."""

from collections.abc import Mapping
from enum import IntEnum

from db.tables import BatchStatus


class Exit(IntEnum):
    SUCCEEDED = 0
    ERROR = 1
    USAGE = 2
    INCOMPLETE = 3  # finished, but prompts failed or bad items were left out
    STOPPED = 4  # cancelled or expired
    INTERRUPTED = 130


def exit_for(status: str, counts: Mapping[str, int], bad_items: int) -> Exit:
    """What a batch's end, or its state so far, is to a shell."""
    if status in (BatchStatus.CANCELLED, BatchStatus.CANCELLING, BatchStatus.EXPIRED):
        return Exit.STOPPED
    if status == BatchStatus.FAILED:
        return Exit.ERROR
    if counts.get("failed") or bad_items:
        return Exit.INCOMPLETE
    return Exit.SUCCEEDED
