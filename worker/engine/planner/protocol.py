"""What the engine asks of a planner. Every plan gives the same text: it decides only how fast."""

from collections.abc import Sequence
from typing import Protocol

from worker.engine.drafters.protocol import Draft
from worker.engine.planner.survival import Stream


class Planner(Protocol):
    """Asked once before drafting and once after it, and told how long the step took."""

    def draft_limits(
        self, rows: Sequence[Stream], speculation: bool, remaining: Sequence[int] | None = None
    ) -> list[int] | None:
        """How many tokens the drafter may propose for each row; 0: it is not asked what costs time.

        None: a plain step, as all are without speculation. `remaining` are the tokens that each row may still
        emit, where nobody waits for their places.
        """
        ...

    def verify_lengths(
        self, rows: Sequence[Stream], drafts: Sequence[Draft], draft_seconds: float
    ) -> list[int]:
        """How many tokens of each row's proposal the target looks at; `draft_seconds` went into them."""
        ...

    def observe(self, num_rows: int, step_seconds: float) -> None:
        """The step that was planned has run, and took so long, drafting aside."""
        ...

    def expected(self, row: Stream, draft: Draft) -> float:
        """How many of the tokens will be accepted: the best of several proposals has the most."""
        ...

    def forget(self, row: Stream) -> None:
        """The row has left."""
        ...


class VerifyAll:
    """A fixed plan: up to gamma tokens a row, all verified. What the others are measured against."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def draft_limits(
        self,
        rows: Sequence[Stream],
        speculation: bool,
        remaining: Sequence[int] | None = None,  # noqa: ARG002 (a fixed plan looks at nothing)
    ) -> list[int] | None:
        return [self._gamma] * len(rows) if speculation else None

    def verify_lengths(
        self,
        rows: Sequence[Stream],  # noqa: ARG002 (a fixed plan looks at nothing)
        drafts: Sequence[Draft],
        draft_seconds: float,  # noqa: ARG002 (a fixed plan looks at nothing)
    ) -> list[int]:
        return [len(draft.tokens) for draft in drafts]

    def observe(self, num_rows: int, step_seconds: float) -> None:
        pass

    def expected(self, row: Stream, draft: Draft) -> float:  # noqa: ARG002 (it knows none)
        return float(draft.match)

    def forget(self, row: Stream) -> None:
        pass
