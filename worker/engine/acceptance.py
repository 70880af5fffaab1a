"""How many proposed tokens a verify pass accepts."""

from collections.abc import Sequence


def count_accepted(proposal: Sequence[int], chosen: Sequence[int]) -> int:
    """Proposals up to the first that differs from the token chosen in its place.

    `chosen` has one token more than `proposal`: what replaces the first wrong proposal, or follows the last.
    """
    accepted = 0
    while accepted < len(proposal) and proposal[accepted] == chosen[accepted]:
        accepted += 1
    return accepted
