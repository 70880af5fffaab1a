"""Proposes what a small model of the same vocabulary would say, with the row's own sampling and noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker.engine.cache import Chunk, Slots, compact
from worker.engine.constraints import Span, constrain
from worker.engine.drafters.protocol import Proposal, Refusal
from worker.engine.rows import Row
from worker.engine.sampling import NOT_FINITE, choose
from worker.engine.target import CachedModel, take_chunks

_PREFILL_TOKENS = 2048  # in one pass, at most
_NEWEST_TOKENS = 32  # a row behind by no more than this catches up in the pass that makes its first guess


@dataclass(slots=True)
class _Draft:
    """A row's slot in the draft model's cache: its first `cached` tokens, then all guesses but the last."""

    slot: int
    cached: int = 0
    guesses: list[int] = field(default_factory=list[int])

    def settle(self, tokens: Sequence[int]) -> None:
        """Keep the guesses that came true. The newest token is always run again: its logits are wanted."""
        for guess in self.guesses[:-1]:
            if self.cached == len(tokens) or tokens[self.cached] != guess:
                break
            self.cached += 1
        self.cached = min(self.cached, len(tokens) - 1)
        self.guesses = []


class DraftModel:
    """A model with its own cache, run for all rows together: a pass to catch up, one per further token."""

    def __init__(self, model: CachedModel, target_vocab_size: int) -> None:
        self._model = model
        self._vocab_size = min(model.vocab_size, target_vocab_size)  # families pad to different sizes
        self._slots = Slots()
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
        compact(self._slots, self._model.cache, list(self._drafts.values()))
        self._catch_up(list(able))
        self._guess(able)
        for row in able:
            draft = self._drafts[row]
            if NOT_FINITE in draft.guesses:
                self._model.cache.wipe(draft.slot)
                proposals[row] = Refusal("the draft model's output was not a finite number")
            else:
                proposals[row] = tuple(draft.guesses)
        return [proposals[row] for row in rows]

    def forget(self, row: Row) -> None:
        draft = self._drafts.pop(row, None)
        if draft is not None:
            self._slots.free(draft.slot)

    def _settle(self, row: Row) -> None:
        if row not in self._drafts:
            self._drafts[row] = _Draft(self._slots.take())
        self._drafts[row].settle(row.tokens)

    def _catch_up(self, rows: Sequence[Row]) -> None:
        """Run prompts, all but their last token, in passes of bounded size."""
        behind = [row for row in rows if len(row.tokens) - self._drafts[row].cached > _NEWEST_TOKENS]
        while behind:
            drafts = [self._drafts[row] for row in behind]
            pending = [
                (d.slot, d.cached, row.tokens[d.cached : -1]) for d, row in zip(drafts, behind, strict=True)
            ]
            chunks = take_chunks(pending, _PREFILL_TOKENS, want_logits=False)
            self._model.forward(chunks)
            for draft, chunk in zip(drafts, chunks, strict=False):
                draft.cached = chunk.end
            behind = [row for row in behind if self._drafts[row].cached < len(row.tokens) - 1]

    def _guess(self, limits: Mapping[Row, int]) -> None:
        rows = sorted(limits, key=lambda row: self._drafts[row].slot)
        while rows:
            logits = self._model.forward([self._next_chunk(row) for row in rows])
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
