"""What the engine asks of a drafter. Whatever it answers, the output is the target's: it only costs time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from worker.engine.cache import Chunk
from worker.engine.rows import Row


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, with what is known about how likely they are."""

    tokens: Sequence[int]
    match: int = 0  # so many of the row's newest tokens preceded them before; 0: not looked up
    source: str = ""  # acceptance is estimated for each source apart
    confidence: Sequence[float] = ()  # of each token, as logits, from a drafter that says how sure it is


@dataclass(frozen=True, slots=True)
class Refusal:
    """The drafter cannot serve this row any more."""

    reason: str


Proposal = Draft | Sequence[int] | Refusal


class Drafter(Protocol):
    """Keeps what it needs about a row under the row itself, from its first proposal until it is forgotten."""

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> Sequence[Proposal]:
        """For each row, up to its limit of tokens to follow row.tokens, or none; see Unasked for limit 0."""
        ...

    def forget(self, row: Row) -> None:
        """The row has ended, or goes on without drafts. It may never have been asked about."""
        ...


@runtime_checkable
class Unasked(Protocol):
    """A drafter that proposes something at next to no cost, also for rows whose limit is 0."""

    @property
    def unasked_tokens(self) -> int:
        """How many, at most."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A drafter that follows what the target computes, pass by pass."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's decoder layers, from 0, whose raw outputs it wants to see; at least one."""
        ...

    def observe(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor, logits: Tensor) -> None:
        """A pass has run over these chunks, one of each row; what of it is accepted is not decided yet.

        `features` [T, m * d] of all its tokens, the taps side by side, and `logits` [N, V] of those wanted,
        both in the chunks' order and valid until this returns. A row's first chunk begins where what it
        shares with another ends.
        """
        ...

    def shareable(self, row: Row) -> int:
        """How many of the row's first positions, of which it has ended, another row may take over."""
        ...
