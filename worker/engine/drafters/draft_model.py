"""Proposes what a small model of the same vocabulary would say, with the row's own sampling and noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from worker.engine.cache import CacheFull, Chunk
from worker.engine.constraints import Span, constrain
from worker.engine.drafters.protocol import Proposal, Refusal
from worker.engine.prefill import Prefill
from worker.engine.rows import Row
from worker.engine.sampling import NOT_FINITE, choose
from worker.engine.storage import Storage
from worker.engine.target import CachedModel

_PREFILL_TOKENS = 2048  # in one pass, at most
_NEWEST_TOKENS = 32  # a row behind by no more than this catches up in the pass that makes its first guess


@dataclass(slots=True, eq=False)
class _Draft:
    """A row's slot in the draft model's cache: its first `cached` tokens, then all guesses but the last."""

    slot: int
    tokens: Sequence[int]  # the row's, as they grow
    cached: int = 0
    guesses: list[int] = field(default_factory=list[int])

    @property
    def prefill_end(self) -> int:
        return len(self.tokens) - 1

    def settle(self) -> None:
        """Keep the guesses that came true. The newest token is always run again: its logits are wanted."""
        for guess in self.guesses[:-1]:
            if self.cached == len(self.tokens) or self.tokens[self.cached] != guess:
                break
            self.cached += 1
        self.cached = min(self.cached, self.prefill_end)
        self.guesses = []


class DraftModel:
    """A model with its own cache, run for all rows together: a pass to catch up, one per further token."""

    def __init__(self, model: CachedModel, target_vocab_size: int) -> None:
        self._model = model
        self._vocab_size = min(model.vocab_size, target_vocab_size)  # families pad to different sizes
        self._storage = Storage(model.cache)
        self._prefill: Prefill[_Draft] = Prefill(self._storage)
        self._drafts: dict[Row, _Draft] = {}

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        proposals: dict[Row, Proposal] = {}
        able: dict[Row, int] = {}
        for row, limit in zip(rows, limits, strict=True):
            room = self._model.context_limit - len(row.tokens)
            if room > 0:
                able[row] = min(limit, room)
                self._settle(row)
            else:
                proposals[row] = Refusal(
                    f"the draft model's context ends at {self._model.context_limit} tokens"
                )
        self._storage.compact(list(self._drafts.values()))
        try:
            self._catch_up([self._drafts[row] for row in able])
            self._guess(able)
        except CacheFull:  # of this step's guesses some are made, or none; the target makes room soon
            pass
        for row in able:
            draft = self._drafts[row]
            if NOT_FINITE in draft.guesses:
                self._storage.wipe(draft)
                proposals[row] = Refusal("the draft model's output was not a finite number")
            else:
                proposals[row] = tuple(draft.guesses)
        return [proposals[row] for row in rows]

    def forget(self, row: Row) -> None:
        draft = self._drafts.pop(row, None)
        if draft is not None:
            self._prefill.forget(draft)
            self._storage.leave(draft)

    def _settle(self, row: Row) -> None:
        if row not in self._drafts:
            draft = self._drafts[row] = _Draft(self._storage.take_slot(), row.tokens)
            if len(row.tokens) <= _NEWEST_TOKENS:
                self._storage.begin(draft)
        self._drafts[row].settle()

    def _catch_up(self, drafts: Sequence[_Draft]) -> None:
        """Run prompts, all but their last token, in passes of bounded size."""
        behind = [draft for draft in drafts if len(draft.tokens) - draft.cached > _NEWEST_TOKENS]
        try:
            while behind:
                prefill = self._prefill.take(behind, _PREFILL_TOKENS)
                self._forward([chunk for _, chunk in prefill])
                for draft, chunk in prefill:
                    draft.cached = chunk.end
                    if draft.cached == draft.prefill_end:
                        self._prefill.forget(draft)
                        self._storage.note(draft)
                behind = [draft for draft in behind if draft.cached < draft.prefill_end]
        finally:  # of an error: who is not asked again must not be waited for
            for draft in behind:
                self._prefill.forget(draft)

    def _forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """What rows have left behind makes room for a pass."""
        self._storage.make_room({chunk.slot: chunk.end for chunk in chunks})
        return self._model.forward(chunks)

    def _guess(self, limits: Mapping[Row, int]) -> None:
        rows = sorted(limits, key=lambda row: self._drafts[row].slot)
        while rows:
            logits = self._forward([self._next_chunk(row) for row in rows])
            draws = [row.draw(ahead=len(self._drafts[row].guesses)) for row in rows]
            logits = constrain(logits[:, : self._vocab_size], self._spans(rows))
            tokens: list[int] = choose(logits, draws).tolist()
            for row, token in zip(rows, tokens, strict=True):
                self._drafts[row].cached = len(row.tokens)
                self._drafts[row].guesses.append(token)
            rows = [
                row
                for row, token in zip(rows, tokens, strict=True)
                if token != NOT_FINITE and len(self._drafts[row].guesses) < limits[row]
            ]

    def _spans(self, rows: Sequence[Row]) -> list[Span]:
        """The draft obeys the row's options as the target does: what it may not say is not worth guessing."""
        spans: list[Span] = []
        for offset, row in enumerate(rows):
            if row.constraints is not None:
                guesses = self._drafts[row].guesses
                spans.append(Span(row.constraints, offset, guesses, first=len(guesses)))
        return spans

    def _next_chunk(self, row: Row) -> Chunk:
        draft = self._drafts[row]
        if draft.guesses:
            start = draft.cached + len(draft.guesses) - 1
            return Chunk(draft.slot, start, draft.guesses[-1:], num_logits=1)
        return Chunk(draft.slot, draft.cached, row.tokens[draft.cached :], num_logits=1)
