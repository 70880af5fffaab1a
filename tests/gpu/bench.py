"""What a section has at hand: models, a device, its time, and a place to note what it finds."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from tests.gpu.models import LARGE, MIDDLE, SMOKE, Size
from tests.worker.engine.cuda.paging import use_kernel, use_pages
from worker.engine import Engine, Failure, FolderModel, Generation, Pair, Request, Sampling
from worker.engine.types import Method


@dataclass
class Bench:
    folder: Path
    smoke: bool
    has_failed: bool = False
    _found: dict[str, Any] = field(default_factory=dict)
    _error: str | None = None
    _notes: Path | None = None
    _deadline: float = 0.0

    def begin(self, notes: Path, seconds: float) -> None:
        """In the section's own process."""
        self._notes, self._deadline = notes, monotonic() + seconds
        torch.set_num_threads(1 if self.smoke else 8)
        patch = pytest.MonkeyPatch()
        if self.smoke:  # pages as on a GPU, and a stand-in for its kernel
            use_pages(patch)
            use_kernel(patch)
            patch.setattr("worker.engine.target.graphs_for", lambda *_: None)
        elif "block_table" not in inspect.signature(varlen_attn).parameters:
            # An older torch than pyproject.toml's, as a borrowed machine may have: the rest can be tried.
            patch.setattr("worker.engine.cuda.paged.can_attend", lambda *_: False)
            self.note(torch_has_no_paged_attention=torch.__version__)

    @property
    def device(self) -> str:
        return "cpu" if self.smoke else "cuda:0"

    @property
    def large(self) -> Size:
        return SMOKE if self.smoke else LARGE

    @property
    def middle(self) -> Size:
        return SMOKE if self.smoke else MIDDLE

    @property
    def seconds_left(self) -> float:
        return self._deadline - monotonic()

    def pair(self, name: str, method: Method, dtype: Any, device: str | None = None, **options: Any) -> Pair:
        target, draft = FolderModel(self.folder / name / "target"), FolderModel(self.folder / name / "draft")
        settings = {"dtype": dtype, "device": device or self.device, "gamma": 4, "prefill_tokens": 2048}
        return Pair(target, method, draft, **(settings | options))

    def note(self, **found: Any) -> None:
        """Numbers; they are kept, whatever becomes of the section."""
        self._found |= found
        self._write()

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.fail(what)

    def fail(self, what: str) -> None:
        self.has_failed = True
        self._error = f"{self._error}; {what}" if self._error else what
        self._write()

    def synchronise(self) -> None:
        if not self.smoke:
            torch.cuda.synchronize()

    def _write(self) -> None:
        assert self._notes is not None
        error = {"error": self._error} if self._error else {}
        self._notes.write_text(json.dumps({"found": self._found, **error}))


def requests(count: int, prompt_tokens: int, sampling: Sampling, vocabulary: int) -> list[Request]:
    """Prompts of random tokens, the same each time."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, vocabulary, (count, prompt_tokens), generator=generator)
    return [Request(index, tuple(row), sampling) for index, row in enumerate(tokens.tolist())]


def finish(engine: Engine, wanted: Sequence[Request]) -> list[Generation]:
    """What became of the requests, in their order; raises for one that failed."""
    for request in wanted:
        engine.submit(request)
    done: dict[Any, Generation] = {}
    while engine.busy:
        for result in engine.step():
            if isinstance(result, Failure):
                raise RuntimeError(f"request {result.request_id} failed: {result.message}")
            done[result.request_id] = result
    return [done[request.id] for request in wanted]
