"""An engine whose answers are written in a table: what the runner sees of an engine, at a test's command."""

import threading
from collections.abc import Hashable, Sequence

from transformers import PreTrainedTokenizerBase

from worker.engine.proof import Comparison
from worker.engine.types import Failure, Generation, Request


class TableEngine:
    """Answers each request at once, unless its prompt is held; `failures` and `deaths` name prompts, too."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_rows: int = 32) -> None:
        self.tokenizer = tokenizer
        self.max_rows = max_rows
        self.goes_on = threading.Event()  # cleared: a step does not end
        self.goes_on.set()
        self.held: set[str] = set()
        self.failures: dict[str, tuple[str, bool]] = {}  # prompt: (code, retryable)
        self.deaths: set[str] = set()
        self.seen: list[tuple[str, Request]] = []
        self.cancelled: set[Hashable] = set()
        self.comparisons: list[Comparison] = []  # told after the next step
        self._running: dict[Hashable, tuple[str, Request]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def rows_in_flight(self) -> int:
        return len(self._running)

    def submit(self, request: Request) -> None:
        prompt = self.tokenizer.decode(request.token_ids, skip_special_tokens=True)
        self.seen.append((prompt, request))
        self._running[request.id] = (prompt, request)

    def cancel(self, request_id: Hashable) -> None:
        self.cancelled.add(request_id)
        self._running.pop(request_id, None)

    def take_comparisons(self) -> list[Comparison]:
        made, self.comparisons = self.comparisons, []
        return made

    def step(self) -> Sequence[Generation | Failure]:
        self.goes_on.wait()
        threading.Event().wait(0.005)  # a step takes a while
        ended = [(prompt, request) for prompt, request in self._running.values() if prompt not in self.held]
        for _, request in ended:
            del self._running[request.id]
        return [self._answer(prompt, request) for prompt, request in ended]

    def _answer(self, prompt: str, request: Request) -> Generation | Failure:
        if prompt in self.deaths:
            raise RuntimeError("device-side assert triggered")
        if prompt in self.failures:
            code, retryable = self.failures[prompt]
            return Failure(request.id, request.sample_index, code, f"{prompt}: {code}", retryable)
        return Generation(
            request_id=request.id,
            sample_index=request.sample_index,
            text=f"answer to {prompt}, sample {request.sample_index}",
            token_ids=(5, 6, 7, 8),
            finish_reason="stop",
            prompt_tokens=len(request.token_ids),
            cached_tokens=0,
            waited_seconds=0.25,
            prefill_seconds=0.5,
            first_token_seconds=0.5,
            decode_seconds=1.0,
            method="prompt_lookup",
            spec_disabled_reason=None,
            num_steps=2,
            num_spec_steps=1,
            num_draft_tokens=4,
            num_accepted_draft_tokens=2,
            acceptance_histogram=(0, 0, 1),
            rows_in_flight=3.0,
        )
