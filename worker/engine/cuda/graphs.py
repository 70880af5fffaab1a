"""Decode and verify passes as CUDA graphs: recorded once for a number of tokens, then started by one call.

A pass over few tokens is over before the host has launched its next kernel. A graph holds all launches of a
pass padded to its size; what differs from step to step is in buffers that it reads.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from worker.engine.cache import Cache, Chunk
from worker.engine.cuda.paged import PagedCache
from worker.engine.cuda.varlen import VarlenPass, pack, packed_size
from worker.engine.taps import Taps
from worker.engine.transfer import to_device

log = logging.getLogger("specmill.engine")

# Tokens of a pass. Few take as long as reading the weights; beyond the last, launches are hidden anyway.
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
LONGEST_CHUNK = 32  # attention takes chunks of up to 64 tokens at one cost

RunModel = Callable[[VarlenPass], Tensor]  # logits [T, V] of all tokens of a pass


def graphs_for(cache: Cache, model: Any, dtype: torch.dtype, taps: Taps | None) -> "Graphs | None":
    """None where attention is not one kernel of a pass, whatever its rows' lengths."""
    if not isinstance(cache, PagedCache) or not cache.reads_pages:
        return None
    vocab_size = model.config.get_text_config().vocab_size
    return Graphs(cache, lambda layout: run_whole(model, layout), vocab_size, dtype, taps)


def run_whole(model: Any, layout: VarlenPass) -> Tensor:
    """Logits of all tokens."""
    output = model(
        input_ids=layout.token_ids[None],
        position_ids=layout.positions[None],
        use_cache=False,
        logits_to_keep=0,
        packed=layout,
    )
    return output.logits[0]


class StaticPass:
    """A pass padded to a size: its numbers come into a buffer, its logits go out of one."""

    def __init__(
        self,
        cache: PagedCache,
        run: RunModel,
        size: int,
        longest: int,
        logits: Tensor,
        taps: Taps | None = None,
    ) -> None:
        self._cache = cache
        self._run = run
        self._taps = taps
        self.features: Tensor | None = None  # of the recorded pass: its replays write there
        self._size = size
        self._longest = longest
        self._logits = logits[:size]
        self._numbers = torch.zeros(packed_size(size, size), dtype=torch.int32, device=logits.device)

    def fill(self, chunks: Sequence[Chunk]) -> None:
        numbers = pack(chunks, self._size, self._size, self._cache.store.padding_slot)
        self._cache.store.follow(self._cache.pages)
        self._numbers.copy_(to_device(numbers, self._numbers.device))

    def run(self) -> None:
        """Everything here is the device's work, and the same each time."""
        layout = VarlenPass(self._cache.store, self._numbers, self._size, self._size, self._longest)
        self._logits.copy_(self._run(layout))
        if self._taps is not None:
            self.features = self._taps.features()


class Graphs:
    """Runs short passes from graphs, which it records as their sizes come up."""

    def __init__(
        self, cache: PagedCache, run: RunModel, vocab_size: int, dtype: torch.dtype, taps: Taps | None
    ) -> None:
        device = cache.store.device
        self._cache = cache
        self._run = run
        self._taps = taps
        self._features: Tensor | None = None
        self._logits = torch.zeros(SIZES[-1], vocab_size, dtype=dtype, device=device)
        self._pool = torch.cuda.graph_pool_handle()  # the graphs run one at a time, in the same memory
        self._graphs: dict[tuple[int, int], tuple[StaticPass, torch.cuda.CUDAGraph]] = {}
        self._recordable = True

    def logits(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """[T, V] of all tokens, until the next pass; None for a pass that must run without a graph."""
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        longest = max(len(chunk.token_ids) for chunk in chunks)
        if not self._recordable or num_tokens > SIZES[-1] or longest > LONGEST_CHUNK:
            return None
        shape = SIZES[bisect_left(SIZES, num_tokens)], 1 if longest == 1 else LONGEST_CHUNK
        if shape not in self._graphs and not self._record(shape, chunks):
            return None
        static, graph = self._graphs[shape]
        static.fill(chunks)
        graph.replay()
        self._features = None if static.features is None else static.features[:num_tokens]
        return self._logits[:num_tokens]

    def features(self) -> Tensor:
        """[T, m * d] of the last pass, until the next."""
        assert self._features is not None, "the graphs were recorded without taps"
        return self._features

    def _record(self, shape: tuple[int, int], chunks: Sequence[Chunk]) -> bool:
        static = StaticPass(self._cache, self._run, *shape, self._logits, self._taps)
        static.fill(chunks)
        static.run()  # libraries set themselves up in their first pass, which no graph may record
        graph = torch.cuda.CUDAGraph()
        try:
            # Errors of this thread alone count: others may use the device meanwhile. The stream is ours again
            # however this ends: a capture that cannot even be ended does not give it back.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                static.run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._recordable = False
            log.warning("this model's passes cannot be recorded as CUDA graphs, and run slower: %s", error)
            return False
        self._graphs[shape] = static, graph
        return True
