"""The bells that were heard: each holds one of Celery's slots until the claim it led to has ended."""

from collections import deque
from collections.abc import Callable, Sequence

from worker.claims import Bell, Claim, Running


class Slots:
    """A bell waits for room, then stands for the claim it led to, and then goes back into circulation."""

    def __init__(self, count: int, ring: Callable[[int], object], pending: Callable[[], int | None]) -> None:
        self._count = count
        self._ring = ring
        self._pending = pending
        self._waiting: deque[Bell] = deque()
        self._claims: list[Claim] = []

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def hear(self, bell: Bell) -> None:
        self._waiting.append(bell)

    def begin(self) -> Claim:
        """A claim for the bell that has waited longest."""
        claim = Claim(self._waiting.popleft())
        self._claims.append(claim)
        return claim

    def end_empty(self, claim: Claim) -> None:
        """There was nothing to do: this bell goes out of circulation."""
        self._claims.remove(claim)
        claim.bell.end()

    def free_one(self) -> None:
        """A few long prompts must not hold every slot: no bell would be heard, and rows stay empty."""
        if len(self._claims) >= self._count:
            self._close([min(self._claims, key=lambda claim: len(claim.prompts))])

    def settle(self, over: Sequence[Running]) -> None:
        """These prompts are over; so are the claims of which they were the last."""
        for running in over:
            running.claim.prompts.discard(running.claimed.prompt_id)
        self._close([claim for claim in self._claims if not claim.prompts])

    def dismiss(self) -> None:
        """There is nothing for those that wait, or nothing more is claimed here."""
        for bell in self._waiting:
            bell.end()
        self._waiting.clear()

    def close(self) -> None:
        """Let every task return."""
        self.dismiss()
        for claim in self._claims:
            claim.bell.end()

    def _close(self, claims: Sequence[Claim]) -> None:
        """Let the tasks of these claims return, and put as many bells back into circulation."""
        if claims and (pending := self._pending()):
            self._ring(min(len(claims), pending))
        for claim in claims:
            self._claims.remove(claim)
            claim.bell.end()
