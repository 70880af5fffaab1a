"""What makes a finished sample doubtful: it loops, or its drafter was garbled."""

from collections.abc import Sequence

from db.acceptance import is_garbled
from db.tables import QualityFlag
from worker.engine.types import Generation

# A loop: the output's last 64 tokens or more are the same phrase of at most 32 over and over, four times at
# least. Copying from the prompt is none, however much of it is accepted: what is copied differs as it goes.
LONGEST_PHRASE = 32
LEAST_TOKENS = 64
LEAST_TIMES = 4


def quality_flag(generation: Generation) -> QualityFlag | None:
    tokens = generation.token_ids
    if generation.finish_reason == "stop":
        tokens = tokens[:-1]  # the EOS that ended it
    if ends_in_a_loop(tokens):
        return QualityFlag.REPEATS
    drafted, accepted = generation.num_draft_tokens, generation.num_accepted_draft_tokens
    if is_garbled(generation.method, generation.num_spec_steps, drafted, accepted):
        return QualityFlag.GARBLED
    return None


def ends_in_a_loop(tokens: Sequence[int]) -> bool:
    return any(
        _repeated(tokens, period) >= max(LEAST_TOKENS, LEAST_TIMES * period)
        for period in range(1, LONGEST_PHRASE + 1)
    )


def _repeated(tokens: Sequence[int], period: int) -> int:
    """So many of the last tokens are a phrase of `period` tokens, repeated; the last time perhaps in part."""
    at = len(tokens) - 1
    while at >= period and tokens[at] == tokens[at - period]:
        at -= 1
    return len(tokens) - 1 - at + period
