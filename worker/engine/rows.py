"""A row: one sample being generated, with all that is counted and timed about it."""

from collections.abc import Sequence
from time import perf_counter

from worker.engine.acceptance import count_accepted
from worker.engine.constraints import Constraints
from worker.engine.detokenizer import Detokenizer
from worker.engine.grammar import GrammarError
from worker.engine.logprobs import Measured, spelt
from worker.engine.sampling import NOT_FINITE, Draw
from worker.engine.stopping import StopMatcher
from worker.engine.types import EmittedLogprob, FinishReason, Generation, Method, Request


class RowFailed(Exception):
    """This row ends without a sample; the others go on."""

    def __init__(self, code: str, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class Row:
    """Prompt and output are `tokens`, the last is the anchor; `cached` have keys and values that count."""

    def __init__(
        self,
        request: Request,
        slot: int,
        context_limit: int,
        detokenizer: Detokenizer,
        submitted: float,
        constraints: Constraints | None = None,
    ) -> None:
        self.request = request
        self.group = request.group
        self.submitted = submitted  # by perf_counter
        self.slot = slot
        self.tokens = list(request.token_ids)
        self.prompt_tokens = len(request.token_ids)
        self.cached = 0
        self.limit = min(request.sampling.max_tokens, context_limit - self.prompt_tokens)
        self.finish_reason: FinishReason | None = None
        self.spec_disabled_reason: str | None = None
        self.constraints = constraints
        self.logprobs: list[Measured] = []  # of emitted tokens, and of some beyond a stop

        self._detokenizer = detokenizer
        self._stops = StopMatcher(request.sampling.stop)
        self._prefill_began = self._first_token_at = self._last_token_at = 0.0
        self._waited_seconds = self._prefill_seconds = 0.0
        self._shared_tokens = 0
        self._num_steps = self._num_spec_steps = 0
        self._num_draft_tokens = self._num_accepted_draft_tokens = 0
        self._histogram: list[int] = []
        self._rows_in_prefill = self._rows_in_steps = 0

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def is_prefilled(self) -> bool:
        """The first token is chosen."""
        return self.num_output > 0

    @property
    def prefill_end(self) -> int:
        """How many tokens have to be in the cache before a step: the prompt, and more after a preemption."""
        return len(self.tokens) - self.is_prefilled

    @property
    def is_ready(self) -> bool:
        """It takes part in steps; what it knows is in the cache, the anchor excepted."""
        return self.is_prefilled and self.cached >= self.prefill_end

    @property
    def draft_limit(self) -> int:
        """Proposals worth verifying: one token more than is accepted comes out of a step."""
        return self.limit - self.num_output - 1

    @property
    def wants_logprobs(self) -> bool:
        return self.request.sampling.logprobs is not None

    def draw(self, ahead: int = 0) -> Draw:
        """The key of the next output position, or of one further ahead."""
        return Draw(self.request.sampling, self.request.sample_index, self.num_output + ahead)

    def commit_prefill(self, num_tokens: int, began: float, rows_in_flight: int) -> None:
        """A pass put so many of the prompt's tokens into the cache."""
        if not self._prefill_began:
            self._prefill_began, self._waited_seconds = began, began - self.submitted
            self._shared_tokens = self.cached
        self._prefill_seconds += perf_counter() - began
        self.cached += num_tokens
        self._rows_in_prefill = rows_in_flight

    def commit_first(self, token: int, eos_ids: frozenset[int]) -> None:
        self._first_token_at = self._last_token_at = perf_counter()
        self._emit(token, eos_ids)

    def commit_step(
        self, proposal: Sequence[int], chosen: Sequence[int], eos_ids: frozenset[int], rows_in_flight: int
    ) -> None:
        """Take the accepted proposals and the token that follows them; beyond a stop nothing is counted."""
        self._last_token_at = perf_counter()
        self._num_steps += 1
        self._rows_in_steps += rows_in_flight
        accepted = count_accepted(proposal, chosen)
        self.cached += accepted + 1
        for emitted, token in enumerate(chosen[: accepted + 1], start=1):
            self._emit(token, eos_ids)
            if self.finish_reason:
                proposal = proposal[:emitted]
                accepted = min(accepted, emitted)
                break
        if proposal:
            self._num_spec_steps += 1
            self._num_draft_tokens += len(proposal)
            self._num_accepted_draft_tokens += accepted
            self._histogram.extend([0] * (accepted + 1 - len(self._histogram)))
            self._histogram[accepted] += 1

    def generation(self, method: Method) -> Generation:
        if self.finish_reason is None:
            raise ValueError("the row is not finished")
        return Generation(
            request_id=self.request.id,
            sample_index=self.request.sample_index,
            text=self._stops.text,
            token_ids=tuple(self.tokens[self.prompt_tokens :]),
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self._shared_tokens,
            waited_seconds=self._waited_seconds,
            prefill_seconds=self._prefill_seconds,
            first_token_seconds=self._first_token_at - self._prefill_began,
            decode_seconds=self._last_token_at - self._first_token_at,
            method=method,
            spec_disabled_reason=self.spec_disabled_reason,
            num_steps=self._num_steps,
            num_spec_steps=self._num_spec_steps,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_draft_tokens=self._num_accepted_draft_tokens,
            acceptance_histogram=tuple(self._histogram),
            rows_in_flight=self._mean_rows(),
            logprobs=self._spelt_logprobs(),
        )

    def _spelt_logprobs(self) -> tuple[EmittedLogprob, ...] | None:
        if not self.wants_logprobs:
            return None
        return spelt(self.logprobs[: self.num_output], self._detokenizer.decoder)

    def _mean_rows(self) -> float:
        """Over its steps; a sample of one token had none, only its prefill."""
        return self._rows_in_steps / self._num_steps if self._num_steps else float(self._rows_in_prefill)

    def _emit(self, token: int, eos_ids: frozenset[int]) -> None:
        if token == NOT_FINITE:
            raise RowFailed(
                "not_finite",
                f"the model's output for token {self.num_output} was not a finite number: "
                "run the pair in another dtype (bfloat16 or float32)",
                retryable=False,
            )
        self.tokens.append(token)
        if token in eos_ids or token in self.request.sampling.stop_token_ids or self._ends_text(token):
            self.finish_reason = "stop"
        elif self.num_output >= self.limit:
            self.finish_reason = "length"

    def _ends_text(self, token: int) -> bool:
        """Whether the token completes a stop string, or all that the row's grammar allows."""
        text = self._detokenizer.push(token)
        if self.num_output <= self.request.sampling.min_tokens:
            self._stops.pass_over(text)
        else:
            self._stops.push(text)
        return self._stops.stopped or self._is_complete(token)

    def _is_complete(self, token: int) -> bool:
        if self.constraints is None:
            return False
        try:
            return self.constraints.push(token)
        except GrammarError as error:
            raise RowFailed("grammar_failed", str(error), retryable=False) from error
