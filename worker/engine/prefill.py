"""Which prompt tokens go into the next pass."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from worker.engine.cache import Chunk
from worker.engine.prefixes import BLOCK, Prefixes
from worker.engine.storage import Resident, Storage


class Prompt(Resident, Protocol):
    def __hash__(self) -> int: ...

    @property
    def prefill_end(self) -> int:
        """How many of its tokens are to be computed. If the last is among them, its logits are wanted."""
        ...


P = TypeVar("P", bound=Prompt)


class Prefill(Generic[P]):
    """Prompts in their order, in chunks. One that begins as another that is being computed waits for it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._begun: set[P] = set()
        self._coming: Prefixes[P] = Prefixes()

    def take(self, prompts: Sequence[P], budget: int) -> list[tuple[P, Chunk]]:
        """At most `budget` tokens; never nothing if there are any."""
        chunks: list[tuple[P, Chunk]] = []
        for prompt in prompts:
            if budget <= 0:
                break
            if not (prompt in self._begun or prompt.cached or self._begin(prompt)):
                continue
            end = min(prompt.prefill_end, prompt.cached + budget)
            tokens = prompt.tokens[prompt.cached : end]
            chunks.append((prompt, Chunk(prompt.slot, prompt.cached, tokens, int(end == len(prompt.tokens)))))
            budget -= len(tokens)
        return chunks

    def forget(self, prompt: P) -> None:
        """All of it is computed, or it has left."""
        self._begun.discard(prompt)
        self._coming.forget(prompt)

    def _begin(self, prompt: P) -> bool:
        _, coming = self._coming.find(prompt.tokens)
        if coming >= BLOCK + self._storage.known(prompt.tokens):
            return False
        self._storage.begin(prompt)
        self._begun.add(prompt)
        self._coming.note(prompt, prompt.tokens, len(prompt.tokens))
        return True
