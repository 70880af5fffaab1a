"""How acceptance is counted, in one place: NULL, not 0, where nothing was drafted; sums as sum / sum."""

from collections.abc import Sequence
from typing import Any


def acceptance_length(accepted: int | None, num_spec_steps: int | None) -> float | None:
    """Tokens a step was worth that verified a proposal: 1 + accepted / steps. The bonus token is that 1."""
    return 1 + (accepted or 0) / num_spec_steps if num_spec_steps else None


def acceptance_rate(accepted: int | None, drafted: int | None) -> float | None:
    """The share of the proposed tokens that the target kept."""
    return (accepted or 0) / drafted if drafted else None


# Drafters without weights: where nothing repeats they are always wrong, and nothing is amiss.
_LOOKUPS = ("prompt_lookup", "suffix")
# A sibling that knows its target is right about every other token, a garbled one about one in thousands.
_GARBLED_STEPS = 16
_GARBLED_RATE = 0.02


def is_garbled(method: str, num_spec_steps: int, drafted: int | None, accepted: int | None) -> bool:
    """Whether a drafting model was wrong so often that its weights, or their use, must be."""
    rate = acceptance_rate(accepted, drafted)
    if rate is None or method in _LOOKUPS or num_spec_steps < _GARBLED_STEPS:
        return False
    return rate < _GARBLED_RATE


def acceptance_columns(
    num_draft_tokens: int, num_accepted_draft_tokens: int, num_spec_steps: int, histogram: Sequence[int]
) -> dict[str, Any]:
    """The acceptance columns of a sample. A zero would read as a drafter that was always wrong."""
    drafted = num_draft_tokens > 0
    return {
        "num_draft_tokens": num_draft_tokens if drafted else None,
        "num_accepted_draft_tokens": num_accepted_draft_tokens if drafted else None,
        "acceptance_histogram": list(histogram) if drafted else None,
        "mean_acceptance_length": acceptance_length(num_accepted_draft_tokens, num_spec_steps),
        "draft_acceptance_rate": acceptance_rate(num_accepted_draft_tokens, num_draft_tokens),
    }
