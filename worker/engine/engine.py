"""The loop: rows come in, are prefilled, and step together until each has its sample."""

from collections import deque
from collections.abc import Hashable, Sequence
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from worker.engine.admission import check_request
from worker.engine.attention import ATTENTION
from worker.engine.cache import CacheFull, Chunk
from worker.engine.capacity import Capacity
from worker.engine.compatibility import check_draft
from worker.engine.constraints import Constraints, make_constraints
from worker.engine.deciding import decide
from worker.engine.defaults import generation_defaults, unserved_defaults
from worker.engine.detokenizer import Detokenizer, TokenDecoder
from worker.engine.drafters import (
    Draft,
    Drafter,
    DraftModel,
    DSparkDrafter,
    GuardedDrafter,
    LookupFirst,
    PromptLookup,
    taps_of,
    weightless_drafter,
)
from worker.engine.dspark.cached import CachedNetwork, layer_shapes
from worker.engine.dspark.loading import load_drafter
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.errors import EngineError
from worker.engine.grammar import GrammarError, Grammars
from worker.engine.loading import LoadedModel, draft_source, load_model
from worker.engine.memory import check_fits
from worker.engine.planner import Planner, make_planner
from worker.engine.prefill import Prefill
from worker.engine.proof import Comparison, Proof
from worker.engine.rows import Row, RowFailed
from worker.engine.storage import Storage
from worker.engine.target import CachedModel
from worker.engine.text import Message, render
from worker.engine.types import Failure, Generation, ModelSource, Pair, Request, Sampling

# Prompt tokens in a pass that no running row waits for: a longer prompt goes through in chunks.
PREFILL_TOKENS = 2048
_HEADROOM = 64  # tokens that a row must have room for beyond its prompt, or it would soon be preempted

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
        memory = check_fits(pair)
        self.pair = pair
        loaded = _load(pair, pair.target, pair.context_limit)
        self.tokenizer: PreTrainedTokenizerBase = loaded.tokenizer
        self.context_limit = loaded.context_limit
        self.eos_ids = loaded.eos_ids
        self.generation_defaults = generation_defaults(loaded.generation_config)
        self.unserved_defaults = unserved_defaults(loaded.generation_config)
        self._decoder = TokenDecoder(loaded.tokenizer)
        network = load_drafter(pair, loaded) if pair.method == "dspark" and drafter is None else None
        self._target = CachedModel(
            loaded,
            pair.max_rows,
            self.context_limit,
            memory.target_cache + (memory.draft_cache if network else 0),  # they lie together
            network.config.taps if network else taps_of(drafter),
            layer_shapes(network.config) if network else (),
        )
        self._grammars = Grammars(loaded.tokenizer, self._target.vocab_size, self.eos_ids)
        self._planner = planner or make_planner(pair, self._target)
        drafter = drafter or (
            _make_network_drafter(pair, network, self._target, self._planner)
            if network
            else _make_drafter(pair, loaded, self._target.vocab_size, self._planner, memory.draft_cache)
        )
        self._drafter = GuardedDrafter(drafter, self._target.vocab_size)
        self._proof = proof or Proof(0.0 if pair.method == "none" else pair.baseline_share)
        self._storage = Storage(self._target.cache)
        self._prefill: Prefill[Row] = Prefill(self._storage)
        self._capacity = Capacity(pair.max_rows)
        self._rows: list[Row] = []  # the last admitted is the last
        self._preempted: deque[Row] = deque()  # they came before all that wait
        self._waiting: deque[tuple[Request, float]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._preempted or self._waiting)

    @property
    def rows_in_flight(self) -> int:
        return len(self._rows)

    @property
    def max_rows(self) -> int:
        """Rows decoded at once: the pair's, or fewer for a while after memory ran out."""
        return self._capacity.rows

    @property
    def num_waiting(self) -> int:
        return len(self._preempted) + len(self._waiting)

    def submit(self, request: Request) -> None:
        self._waiting.append((request, perf_counter()))

    def cancel(self, request_id: Hashable) -> None:
        """Drop all samples of a request, waiting or running; nothing is reported about them."""
        self._waiting = deque(item for item in self._waiting if item[0].id != request_id)
        self._preempted = deque(row for row in self._preempted if row.request.id != request_id)
        for row in [row for row in self._rows if row.request.id == request_id]:
            self._remove(row)

    def forget_prompts(self) -> None:
        """Compute what was computed before again: measured runs of the same prompts are then alike."""
        self._storage.clear()

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """One pass: a verify step of the rows that run, and prompt tokens of those that do not yet."""
        results = self._admit()
        try:
            if self._rows:
                with self._proof.watch(list(self._rows), self.speculation):
                    results += self._run_pass()
        except (CacheFull, MemoryError, RuntimeError) as error:
            if not (isinstance(error, CacheFull) or _is_out_of_memory(error)):
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
        self._storage.trim(0)  # nor is a prompt known of the last one's rows: all begin alike
        if (taps := taps_of(drafter)) and taps != self._target.taps:
            raise EngineError(
                f"the drafter wants to see layers {list(taps)} of the target, and this engine was made to "
                f"show {list(self._target.taps)}: make an engine with it"
            )
        before = self._drafter.guarded, self._planner
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
            self._preempted.clear()
            for row in list(self._rows):
                self._remove(row)
        return [done[index] for index in range(len(prompts))]

    def _admit(self) -> list[Result]:
        """Give free slots to those that wait, in order; what can never run fails by name."""
        failures: list[Result] = []
        while len(self._rows) < self.max_rows and self.num_waiting:
            tokens = self._preempted[0].tokens if self._preempted else self._waiting[0][0].token_ids
            if self._rows and not self._has_room(len(tokens)):
                break
            if self._preempted:
                row = self._preempted.popleft()
                row.slot, row.cached = self._storage.take_slot(), 0
                self._rows.append(row)
                continue
            request, submitted = self._waiting.popleft()
            try:
                check_request(request, self._target.name, self.context_limit, self._target.vocab_size)
                constraints = self._constraints(request)
                detokenizer = Detokenizer(self._decoder)
                slot = self._storage.take_slot()
                self._rows.append(Row(request, slot, self.context_limit, detokenizer, submitted, constraints))
            except RowFailed as error:
                failures.append(_failure(request, error))
        self._storage.compact(self._rows)
        return failures

    def _has_room(self, length: int) -> bool:
        """For one more row with so many tokens, beside those whose tokens are not all in the cache yet."""
        ends = {row.slot: len(row.tokens) + _HEADROOM for row in self._rows if not row.is_ready}
        ends[self._storage.next_slot] = length + _HEADROOM
        return self._storage.make_room({slot: min(end, self.context_limit) for slot, end in ends.items()})

    def _constraints(self, request: Request) -> Constraints | None:
        try:
            grammar = self._grammars.start(request.sampling)
        except GrammarError as error:
            raise RowFailed("bad_grammar", str(error), retryable=False) from error
        return make_constraints(request, self.eos_ids, grammar)

    def _run_pass(self) -> list[Result]:
        """Run the target over anchors and proposals of running rows, and over the prompts of others."""
        running = sorted((row for row in self._rows if row.is_ready), key=lambda row: row.slot)
        coming = [row for row in self._rows if not row.is_ready]
        began = perf_counter()
        proposals = self._propose(running) if running else []
        drafted = perf_counter()
        chunks = [
            Chunk(row.slot, row.cached, [row.tokens[-1], *proposal], num_logits=len(proposal) + 1)
            for row, proposal in zip(running, proposals, strict=True)
        ]
        prefill = self._prefill.take(coming, self.pair.prefill_tokens if running else PREFILL_TOKENS)
        first = [row for row, chunk in prefill if chunk.num_logits]
        rows = [*running, *first]
        proposals += [()] * len(first)
        chunks += [chunk for _, chunk in prefill]
        logits = self._forward(chunks)
        if self._drafter.taps:
            seen = [*running, *(row for row, _ in prefill)]
            self._drafter.observe(seen, chunks, self._target.features(), logits)
        chosen = decide(logits, rows, proposals)
        for row, chunk in prefill:
            row.commit_prefill(len(chunk.token_ids), began, len(self._rows))
            if row.cached == row.prefill_end:
                self._prefill.forget(row)
        results = self._commit(list(zip(rows, proposals, chosen, strict=True)), len(running))
        if not prefill:  # what prompts cost is not what a step costs
            self._planner.observe(len(rows), perf_counter() - drafted)
        return results

    def _propose(self, rows: Sequence[Row]) -> list[Sequence[int]]:
        """What of the drafter's proposals is worth verifying."""
        remaining = None if self.num_waiting else [row.limit - row.num_output for row in rows]
        speculation = self.speculation and not self._proof.is_plain
        limits = self._planner.draft_limits(rows, speculation, remaining)
        began = perf_counter()
        drafts = [Draft(())] * len(rows) if limits is None else self._drafter.propose(rows, limits)
        lengths = self._planner.verify_lengths(rows, drafts, perf_counter() - began)
        return [draft.tokens[:length] for draft, length in zip(drafts, lengths, strict=True)]

    def _forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """What rows have left behind makes room for a pass."""
        self._storage.make_room({chunk.slot: chunk.end for chunk in chunks})
        return self._target.forward(chunks)

    def _commit(
        self, commits: Sequence[tuple[Row, Sequence[int], list[int]]], num_running: int
    ) -> list[Result]:
        """Emit each row's tokens; a row whose processing fails ends alone."""
        results: list[Result] = []
        ended: list[Row] = []
        for row, proposal, chosen in commits:
            try:
                if row.is_prefilled:
                    row.commit_step(proposal, chosen, self.eos_ids, num_running)
                else:
                    row.commit_first(chosen[0], self.eos_ids)
                    self._storage.note(row)
                if row.finish_reason is None:
                    continue
                results.append(row.generation(self.pair.method))
                self._storage.note(row, self._drafter.shareable(row))
            except Exception as error:
                self._storage.wipe(row)
                results.append(_failure(row.request, error))
            ended.append(row)
        for row in ended:
            self._remove(row)
        return results

    def _make_room(self, error: Exception) -> list[Result]:
        """The pass found no memory: the last to come wait, and are computed again when others have ended.

        In the cache one row makes room for the others; where the machine has none, half of them have to go.
        What the pass did write lies beyond every row's length, and is overwritten. A row alone fails.
        """
        if len(self._rows) > 1:
            within_limit = not isinstance(error, CacheFull)
            too_many = self._capacity.ran_out(len(self._rows)) if within_limit else 1
            for row in self._rows[-too_many:][::-1]:
                self._remove(row)
                self._preempted.appendleft(row)
            if within_limit:
                self._storage.compact(self._rows)
                self._storage.trim(len(self._rows))
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
        self._storage.leave(row)
        self._prefill.forget(row)
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
        quantization=pair.quantization,
    )


def _make_network_drafter(
    pair: Pair, network: DSparkNetwork, target: CachedModel, planner: Planner
) -> Drafter:
    cached = CachedNetwork(network, target.cache, target.num_layers, target.context_limit)
    return LookupFirst(PromptLookup(), DSparkDrafter(cached, target.vocab_size), planner.expected, pair.gamma)


def _make_drafter(
    pair: Pair, target: LoadedModel, vocab_size: int, planner: Planner, cache_bytes: int
) -> Drafter:
    source = draft_source(pair)
    if source is None:
        return weightless_drafter(pair.method, planner.expected)
    draft = _load(pair, source, None)
    check_draft(target, draft)
    context_limit = min(draft.context_limit, target.context_limit)
    return DraftModel(CachedModel(draft, pair.max_rows, context_limit, cache_bytes), vocab_size)


def _is_out_of_memory(error: Exception) -> bool:
    """For what a CPU lacks, and CUDA beneath its allocator, torch has no class, only words."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in ("can't allocate memory", "CUDA error: out of memory"))


def _failure(request: Request, error: Exception) -> Failure:
    if isinstance(error, RowFailed):
        return Failure(request.id, request.sample_index, error.code, str(error), error.retryable)
    message = f"the row could not be processed: {type(error).__name__}: {error}"
    return Failure(request.id, request.sample_index, "internal_error", message, retryable=True)
