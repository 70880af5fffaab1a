"""What the engine's plain blocks of steps have shown, until it is in the database."""

from collections import deque
from collections.abc import Iterator, Sequence

from db.speedups import NewComparison
from worker.engine.proof import Comparison
from worker.ledger import Ledger

_MOST = 1000  # kept while the database is away; a busy worker makes some dozen an hour


class Comparisons:
    """Measurements, not results: kept in memory alone, and of too many the oldest go."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[NewComparison] = deque(maxlen=_MOST)

    def note(self, comparisons: Sequence[Comparison]) -> None:
        for comparison in comparisons:
            self._waiting.extend(_for_each_batch(comparison))

    def write(self) -> None:
        """Those that wait, unless the database is away: then they wait on."""
        if self._waiting and self._ledger.compare(list(self._waiting)) is not None:
            self._waiting.clear()


def _for_each_batch(comparison: Comparison) -> Iterator[NewComparison]:
    """A request's group is its batch; see `preparing`."""
    plain, speculative = comparison.plain, comparison.speculative
    for batch_id in sorted(map(str, comparison.groups)):
        yield NewComparison(
            batch_id=batch_id,
            block=comparison.block,
            rows_in_flight=comparison.rows_in_flight,
            batches_in_flight=len(comparison.groups),
            plain_steps=plain.steps,
            plain_tokens=plain.tokens,
            plain_seconds=plain.seconds,
            speculative_steps=speculative.steps,
            speculative_tokens=speculative.tokens,
            speculative_seconds=speculative.seconds,
        )
