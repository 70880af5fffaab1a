"""The loop: rows come in, are prefilled, and step together until each has its sample."""

from collections import deque
from collections.abc import Hashable, Sequence
from time import perf_counter

import torch
from transformers import PreTrainedTokenizerBase

from worker.engine.admission import check_request
from worker.engine.attention import ATTENTION
from worker.engine.cache import Chunk, Slots, compact
from worker.engine.capacity import Capacity
from worker.engine.compatibility import check_draft
from worker.engine.constraints import Constraints, make_constraints
from worker.engine.deciding import decide
from worker.engine.defaults import generation_defaults, unserved_defaults
from worker.engine.detokenizer import Detokenizer, TokenDecoder
from worker.engine.drafters import (
    BestOf,
    Drafter,
    DraftModel,
    GuardedDrafter,
    NoDrafter,
    PromptLookup,
    SuffixDrafter,
)
from worker.engine.errors import EngineError
from worker.engine.grammar import GrammarError, Grammars
from worker.engine.loading import LoadedModel, draft_source, load_model
from worker.engine.memory import check_fits
from worker.engine.planner import Planner, make_planner
from worker.engine.proof import Comparison, Proof
from worker.engine.rows import Row, RowFailed
from worker.engine.target import CachedModel, take_chunks
from worker.engine.text import Message, render
from worker.engine.types import Failure, Generation, ModelSource, Pair, Request, Sampling

# Prompt tokens in one pass: a longer prompt goes through in chunks, shorter ones share a pass.
PREFILL_TOKENS = 2048

Result = Generation | Failure


class Engine:
    """A pair, loaded: continuous batching with speculative decoding. One thread uses it."""

    def __init__(
        self,
        pair: Pair,
        drafter: Drafter | None = None,
        planner: Planner | None = None,
        proof: Proof | None = None,
    ) -> None:
        """Load the pair's models; a `drafter` of one's own takes the place of the pair's method."""
        self.speculation = True  # False: no drafting from the next step on
        check_fits(pair)
        self.pair = pair
        loaded = _load(pair, pair.target, pair.context_limit)
        self.tokenizer: PreTrainedTokenizerBase = loaded.tokenizer
        self.context_limit = loaded.context_limit
        self.eos_ids = loaded.eos_ids
        self.generation_defaults = generation_defaults(loaded.generation_config)
        self.unserved_defaults = unserved_defaults(loaded.generation_config)
        self._decoder = TokenDecoder(loaded.tokenizer)
        self._target = CachedModel(loaded, pair.max_rows, self.context_limit)
        self._grammars = Grammars(loaded.tokenizer, self._target.vocab_size, self.eos_ids)
        self._planner = planner or make_planner(pair, self._target)
        drafter = drafter or _make_drafter(pair, loaded, self._target.vocab_size, self._planner)
        self._drafter = GuardedDrafter(drafter, self._target.vocab_size)
        self._proof = proof or Proof(0.0 if pair.method == "none" else pair.baseline_share)
        self._slots = Slots()
        self._capacity = Capacity(pair.max_rows)
        self._rows: list[Row] = []  # the last admitted is the last
        self._waiting: deque[tuple[Request, float]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    @property
    def rows_in_flight(self) -> int:
        return len(self._rows)

    @property
    def max_rows(self) -> int:
        """Rows decoded at once: the pair's, or fewer for a while after memory ran out."""
        return self._capacity.rows

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, request: Request) -> None:
        self._waiting.append((request, perf_counter()))

    def cancel(self, request_id: Hashable) -> None:
        """Drop all samples of a request, waiting or running; nothing is reported about them."""
        self._waiting = deque(item for item in self._waiting if item[0].id != request_id)
        for row in [row for row in self._rows if row.request.id == request_id]:
            self._remove(row)

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """One iteration: a pass over prompts while any is unfinished, else one verify step of all rows."""
        results = self._admit()
        unfinished = [row for row in self._rows if not row.is_prefilled]
        try:
            with self._proof.watch(list(self._rows), self.speculation):
                if unfinished:
                    results += self._prefill(unfinished)
                elif self._rows:
                    results += self._verify()
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            results += self._make_room(error)
        if not self.busy:
            self._proof.rest()
        return results

    def take_comparisons(self) -> list[Comparison]:
        """What plain blocks of steps have shown since the last call; see the pair's `baseline_share`."""
        return self._proof.take()

    def exchange(self, drafter: Drafter, planner: Planner) -> tuple[Drafter, Planner]:
        """Work with these from now on, while nothing runs; what it has worked with is returned."""
        if self.busy:
            raise EngineError(
                "exchange() was called while the engine is busy: collect what was submitted first"
            )
        before = self._drafter, self._planner
        self._drafter, self._planner = GuardedDrafter(drafter, self._target.vocab_size), planner
        return before

    def generate(
        self, prompts: Sequence[str | Sequence[Message]], sampling: Sampling | None = None, raw: bool = False
    ) -> list[Generation]:
        """A sample for each prompt. A string is a user's message, or with `raw` a text to continue."""
        if self.busy:
            raise EngineError(
                "generate() was called while the engine is busy: collect what was submitted first"
            )
        done: dict[Hashable, Generation] = {}
        try:
            for index, prompt in enumerate(prompts):
                if isinstance(prompt, str) and not raw:
                    prompt = [Message(role="user", content=prompt)]
                rendered = render(self.tokenizer, prompt)
                self.submit(Request(index, rendered.token_ids, sampling or Sampling()))
            while self.busy:
                for result in self.step():
                    if isinstance(result, Failure):
                        raise EngineError(f"prompt {result.request_id} failed: {result.message}")
                    done[result.request_id] = result
        finally:  # of an error or an interrupt: leave nothing behind that a later call would meet
            self._waiting.clear()
            for row in list(self._rows):
                self._remove(row)
        return [done[index] for index in range(len(prompts))]

    def _admit(self) -> list[Result]:
        """Give free rows to those that wait, in order; what can never run fails by name."""
        failures: list[Result] = []
        while self._waiting and len(self._rows) < self.max_rows:
            request, submitted = self._waiting.popleft()
            try:
                check_request(request, self._target.name, self.context_limit, self._target.vocab_size)
                constraints = self._constraints(request)
                detokenizer = Detokenizer(self._decoder)
                self._rows.append(
                    Row(request, self._slots.take(), self.context_limit, detokenizer, submitted, constraints)
                )
            except RowFailed as error:
                failures.append(_failure(request, error))
        compact(self._slots, self._target.cache, self._rows)
        return failures

    def _constraints(self, request: Request) -> Constraints | None:
        try:
            grammar = self._grammars.start(request.sampling)
        except GrammarError as error:
            raise RowFailed("bad_grammar", str(error), retryable=False) from error
        return make_constraints(request, self.eos_ids, grammar)

    def _prefill(self, rows: Sequence[Row]) -> list[Result]:
        """One bounded pass over prompts; the rows whose prompt ends in it get their first token."""
        began = perf_counter()
        pending = [(row.slot, row.cached, row.tokens[row.cached :]) for row in rows]
        chunks = take_chunks(pending, PREFILL_TOKENS)
        rows = rows[: len(chunks)]
        ready = [row for row, chunk in zip(rows, chunks, strict=True) if chunk.num_logits]
        chosen = decide(self._target.forward(chunks), ready, [()] * len(ready))
        for row, chunk in zip(rows, chunks, strict=True):
            row.commit_prefill(len(chunk.token_ids), began, len(self._rows))
        return self._commit([(row, (), tokens) for row, tokens in zip(ready, chosen, strict=True)])

    def _verify(self) -> list[Result]:
        """Propose, run the target over anchors and proposals, and commit what it accepts."""
        rows = sorted(self._rows, key=lambda row: row.slot)
        limits = self._planner.draft_limits(rows, self.speculation and not self._proof.is_plain)
        began = perf_counter()
        drafts = self._drafter.propose(rows, limits)
        drafted = perf_counter()
        lengths = self._planner.verify_lengths(rows, drafts, drafted - began)
        proposals = [draft.tokens[:length] for draft, length in zip(drafts, lengths, strict=True)]
        chunks = [
            Chunk(row.slot, row.cached, [row.tokens[-1], *proposal], num_logits=len(proposal) + 1)
            for row, proposal in zip(rows, proposals, strict=True)
        ]
        chosen = decide(self._target.forward(chunks), rows, proposals)
        results = self._commit(list(zip(rows, proposals, chosen, strict=True)))
        self._planner.observe(len(rows), perf_counter() - drafted)
        return results

    def _commit(self, commits: Sequence[tuple[Row, Sequence[int], list[int]]]) -> list[Result]:
        """Emit each row's tokens; a row whose processing fails ends alone."""
        results: list[Result] = []
        in_flight = len(self._rows)
        for row, proposal, chosen in commits:
            try:
                if row.is_prefilled:
                    row.commit_step(proposal, chosen, self.eos_ids, in_flight)
                else:
                    row.commit_first(chosen[0], self.eos_ids)
                if row.finish_reason is None:
                    continue
                results.append(row.generation(self.pair.method))
            except Exception as error:
                self._target.cache.wipe(row.slot)
                results.append(_failure(row.request, error))
            self._remove(row)
        return results

    def _make_room(self, error: Exception) -> list[Result]:
        """The pass found no memory: half of the rows, the last to come, wait and begin again when others end.

        What the pass did write lies beyond every row's length, and is overwritten. A row alone fails.
        """
        if len(self._rows) > 1:
            for row in self._rows[-self._capacity.ran_out(len(self._rows)) :][::-1]:
                self._remove(row)
                self._waiting.appendleft((row.request, row.submitted))
            compact(self._slots, self._target.cache, self._rows)
            self._target.cache.trim(len(self._rows))
            return []
        (row,) = self._rows
        self._remove(row)
        message = (
            f"no memory for this prompt even alone, after {len(row.tokens)} tokens ({error}): "
            "lower the pair's context_limit, or run it where more memory is free"
        )
        return [_failure(row.request, RowFailed("out_of_memory", message, retryable=True))]

    def _remove(self, row: Row) -> None:
        self._rows.remove(row)
        self._slots.free(row.slot)
        self._drafter.forget(row)
        self._planner.forget(row)


def _load(pair: Pair, source: ModelSource, context_limit: int | None) -> LoadedModel:
    return load_model(
        source,
        pair.dtype,
        pair.device,
        trust_remote_code=pair.trust_remote_code,
        attention=ATTENTION,
        context_limit=context_limit,
    )


def _make_drafter(pair: Pair, target: LoadedModel, vocab_size: int, planner: Planner) -> Drafter:
    source = draft_source(pair)
    if source is not None:
        draft = _load(pair, source, None)
        check_draft(target, draft)
        context_limit = min(draft.context_limit, target.context_limit)
        return DraftModel(CachedModel(draft, pair.max_rows, context_limit), vocab_size)
    if pair.method == "suffix":
        return BestOf([PromptLookup(), SuffixDrafter()], planner.expected)
    return PromptLookup() if pair.method == "prompt_lookup" else NoDrafter()


def _is_out_of_memory(error: Exception) -> bool:
    """On CPU torch has no class for it, only the allocator's words."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _failure(request: Request, error: Exception) -> Failure:
    if isinstance(error, RowFailed):
        return Failure(request.id, request.sample_index, error.code, str(error), error.retryable)
    message = f"the row could not be processed: {type(error).__name__}: {error}"
    return Failure(request.id, request.sample_index, "internal_error", message, retryable=True)
