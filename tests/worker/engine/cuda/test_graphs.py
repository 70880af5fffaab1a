"""A pass padded to a graph's size gives its tokens the logits of the pass as it is, whatever was run before.

The recording itself needs a GPU (tests/gpu): here the padded passes are run step by step.
"""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from tests.worker.engine.cuda.paging import use_kernel, use_pages
from tests.worker.engine.tiny import Kind
from worker.engine import FolderModel
from worker.engine.attention import ATTENTION
from worker.engine.cache import Chunk
from worker.engine.cuda.graphs import LONGEST_CHUNK, StaticPass, run_whole
from worker.engine.cuda.paged import PagedCache
from worker.engine.loading import load_model
from worker.engine.target import CachedModel

Folders = Callable[[Kind], Path]


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
@torch.inference_mode()
def test_padding_changes_no_logits(kind: Kind, target_folder: Folders, monkeypatch: pytest.MonkeyPatch):
    use_pages(monkeypatch)
    use_kernel(monkeypatch)
    monkeypatch.setattr("worker.engine.target.graphs_for", lambda *_: None)
    loaded = load_model(FolderModel(target_folder(kind)), "float64", "cpu", attention=ATTENTION)
    model = CachedModel(loaded, max_rows=6, context_limit=100)
    model.forward([Chunk(slot, 0, range(10 + slot, 40 + slot), 0) for slot in range(6)])
    cache = cast(PagedCache, model.cache)
    logits = torch.zeros(16, model.vocab_size, dtype=torch.float64)
    verify = StaticPass(cache, lambda layout: run_whole(loaded.model, layout), 16, LONGEST_CHUNK, logits)
    plain = StaticPass(cache, lambda layout: run_whole(loaded.model, layout), 8, 1, logits)

    blocks = [Chunk(slot, 29, range(50, 50 + length), length) for slot, length in [(4, 1), (0, 6), (2, 3)]]
    anchors = [Chunk(slot, 30, [60 + slot], 1) for slot in (5, 3, 1)]
    for chunks, static in [(blocks, verify), (anchors, plain), (blocks[:2], verify), (anchors[1:], plain)]:
        expected = model.forward(chunks)  # writes what the padded pass then writes again
        static.fill(chunks)
        static.run()
        assert torch.allclose(logits[: len(expected)], expected, rtol=1e-12, atol=1e-12)
        assert not cache.store.tables[cache.store.padding_slot].any()
