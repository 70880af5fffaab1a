"""Which cache suits a device."""

from collections.abc import Sequence

import torch

from worker.engine.cache import Cache, LayerShape
from worker.engine.contiguous import ContiguousCache
from worker.engine.cuda.paged import PagedCache


def make_cache(
    shapes: Sequence[LayerShape],
    max_slots: int,
    max_positions: int,
    dtype: torch.dtype,
    device: str,
    max_bytes: int | None = None,
) -> Cache:
    kind = PagedCache if torch.device(device).type == "cuda" else ContiguousCache
    return kind(shapes, max_slots, max_positions, dtype, device, max_bytes)
