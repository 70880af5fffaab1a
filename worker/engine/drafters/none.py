"""Plain decoding."""

from collections.abc import Sequence

from worker.engine.drafters.protocol import Proposal
from worker.engine.rows import Row


class NoDrafter:
    """Proposes nothing."""

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        return [() for _ in zip(rows, limits, strict=True)]

    def forget(self, row: Row) -> None:
        pass
