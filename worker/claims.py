"""What the runner keeps in mind: bells that wait, the claims they led to, and the prompts of those."""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from db.queue import Claimed, Failed, Lease, Success
from worker.engine.proof import Comparison
from worker.engine.types import Failure, Generation, Request
from worker.errors import RETRY_LIMIT, is_retryable
from worker.samples import to_columns


class SampleId(NamedTuple):
    """Names a request in the engine; the attempt keeps a late output apart from that of a later claim."""

    prompt_id: int
    attempt: int
    sample_index: int


class Bell:
    """One heard message: its Celery task waits here until the runner has done what it asked for."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def end(self) -> None:
        self._over.set()

    def wait(self) -> None:
        self._over.wait()

    @property
    def has_ended(self) -> bool:
        return self._over.is_set()


@dataclass(frozen=True)
class Drain:
    """Told to stop, within so many seconds."""

    grace: float


@dataclass(frozen=True)
class Compared:
    """What a plain block of the engine's steps has shown."""

    comparisons: Sequence[Comparison]


# What the runner's thread waits for; an error is the engine's death.
Event = Bell | Drain | Compared | BaseException | Sequence[Generation | Failure]


@dataclass(eq=False)
class Claim:
    """The prompts that one bell brought, as far as they have not ended."""

    bell: Bell
    prompts: set[int] = field(default_factory=set[int])


@dataclass(eq=False)
class Running:
    """A prompt this worker holds a lease on."""

    claimed: Claimed
    claim: Claim
    requests: list[Request]  # one a sample
    rendered: str
    waited_seconds: float  # submitted until the engine was given it
    generations: dict[int, Generation] = field(default_factory=dict[int, Generation])
    failure: Failure | None = None

    @property
    def lease(self) -> Lease:
        return self.claimed.lease

    @property
    def has_ended(self) -> bool:
        return self.failure is not None or len(self.generations) == self.claimed.n

    def unfinished(self) -> list[Hashable]:
        return [request.id for request in self.requests if request.sample_index not in self.generations]

    def success(self) -> Success:
        samples: list[dict[str, Any]] = [
            to_columns(generation, request.sampling.seed, self.waited_seconds)
            for request in self.requests
            if (generation := self.generations[request.sample_index])
        ]
        return Success(self.lease, self.rendered, samples)

    def failed(self) -> Failed:
        assert self.failure is not None
        return Failed(self.lease, self.failure.code, self.failure.message)


class Retries:
    """Counts retryable failures by prompt, so that one which fails here every time ends."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def again(self, prompt_id: int, failure: Failure) -> bool:
        """Whether the prompt goes back to pending rather than to failed."""
        if not is_retryable(failure.code, failure.retryable):
            return False
        count = self._counts[prompt_id] = self._counts.get(prompt_id, 0) + 1
        return count < RETRY_LIMIT
