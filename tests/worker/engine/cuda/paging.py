"""Engines on a CPU whose keys and values are in pages, as on a GPU; and what stands in for the kernel."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from worker.engine.cache import LayerShape
from worker.engine.cuda.paged import PagedCache

PAGE = 16  # tiny rows cross the edges of several


def use_pages(patch: pytest.MonkeyPatch) -> None:
    def make_cache(
        shapes: Sequence[LayerShape], slots: int, positions: int, dtype: torch.dtype, device: str, *rest: int
    ) -> PagedCache:
        return PagedCache(shapes, slots, positions, dtype, device, *rest, page_tokens=PAGE)

    patch.setattr("worker.engine.target.make_cache", make_cache)


def use_kernel(patch: pytest.MonkeyPatch) -> None:
    """The kernel itself runs on GPUs alone; what it computes, by its documentation, is few lines."""
    patch.setattr("worker.engine.cuda.varlen.varlen_attn", varlen_attn)
    patch.setattr("worker.engine.cuda.paged.can_attend", lambda *_: True)


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
) -> Tensor:
    """As torch.nn.attention.varlen documents it: aligned at the end, a window of (before, after)."""
    rows, group = len(seqused_k), query.shape[1] // key.shape[2]
    assert enable_gqa
    assert num_splits == 1
    assert (cu_seq_q.dtype, seqused_k.dtype, block_table.dtype, cu_seq_k.dtype) == (torch.int32,) * 4
    assert len(cu_seq_q) == len(cu_seq_k) == rows + 1 == len(block_table) + 1
    assert max_k >= seqused_k.max()
    output = torch.full((*query.shape[:2], value.shape[-1]), torch.nan, dtype=query.dtype)
    for row in range(rows):
        begin, end = cu_seq_q[row : row + 2].tolist()
        length = int(seqused_k[row])
        assert end - begin <= max_q
        if begin == end:
            continue
        keys, values = (
            pages[block_table[row].long()].flatten(0, 1)[:length].repeat_interleave(group, dim=1)
            for pages in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[begin:end], keys) * (scale or query.shape[-1] ** -0.5)
        own = torch.arange(length - (end - begin), length)[:, None]
        place = torch.arange(length)
        before, after = window_size
        hidden = torch.zeros(end - begin, length, dtype=torch.bool)
        if before >= 0:
            hidden |= place < own - before
        if after >= 0:
            hidden |= place > own + after
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        output[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return output
