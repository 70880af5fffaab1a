"""What the engine asks of a drafter. Whatever it answers, the output is the target's: it only costs time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.engine.rows import Row


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, with what is known about how likely they are."""

    tokens: Sequence[int]
    match: int = 0  # so many of the row's newest tokens preceded them before; 0: not looked up
    source: str = ""  # acceptance is estimated for each source apart


@dataclass(frozen=True, slots=True)
class Refusal:
    """The drafter cannot serve this row any more."""

    reason: str


Proposal = Draft | Sequence[int] | Refusal


class Drafter(Protocol):
    """Keeps what it needs about a row under the row itself, from its first proposal until it is forgotten."""

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Sequence[Proposal]:
        """For each row, up to its limit (at least 1) of tokens to follow row.tokens, or none."""
        ...

    def forget(self, row: Row) -> None:
        """The row has ended, or goes on without drafts. It may never have been asked about."""
        ...
