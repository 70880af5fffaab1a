"""One run: prompts through an engine, so many rows at a time."""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import psutil
import torch

from worker.engine import Engine, EngineError, Failure, Generation, Request


@dataclass(frozen=True)
class Run:
    generations: list[Generation]  # by request
    seconds: float
    peak_memory: int  # bytes: this process's on a CPU, what torch has allocated on a GPU

    @property
    def tokens_per_second(self) -> float:
        return sum(generation.completion_tokens for generation in self.generations) / self.seconds

    @property
    def first_token_seconds(self) -> float:
        """Median, from the moment the engine was given the prompt."""
        return statistics.median(g.waited_seconds + g.first_token_seconds for g in self.generations)


def run(engine: Engine, requests: Sequence[Request], rows: int) -> Run:
    """Never more than `rows` requests are in the engine; each that ends makes room for the next."""
    engine.forget_prompts()
    waiting = deque(requests)
    done: dict[object, Generation] = {}
    memory = _Memory(engine.pair.device)
    began = perf_counter()
    while len(done) < len(requests):
        while waiting and len(requests) - len(waiting) - len(done) < rows:
            engine.submit(waiting.popleft())
        for result in engine.step():
            if isinstance(result, Failure):
                raise EngineError(f"prompt {result.request_id} failed: {result.message}")
            done[result.request_id] = result
        memory.look()
    seconds = perf_counter() - began
    return Run([done[request.id] for request in requests], seconds, memory.peak)


class _Memory:
    """The peak since it was made; on a CPU that of what is seen after each step."""

    def __init__(self, device: str) -> None:
        self._on_gpu = torch.device(device).type == "cuda"
        self._process = psutil.Process()
        self._seen = 0
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def look(self) -> None:
        if not self._on_gpu:
            self._seen = max(self._seen, self._process.memory_info().rss)

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self._on_gpu else self._seen
