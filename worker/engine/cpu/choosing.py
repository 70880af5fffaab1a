"""The largest logit of each row."""

from functools import cache

import torch
from torch import Tensor

from worker.engine.cpu.kernels import Kernels, kernels_for


def largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [N, V], in their dtype, and which token has it, the first of equals: [N], and int64 [N].

    NaN, and any token, where one of them is NaN. By a kernel where there is one: torch takes far longer.
    """
    kernels = _kernels(logits.dtype) if logits.device.type == "cpu" and logits.is_contiguous() else None
    if kernels is None:
        values, tokens = logits.max(dim=-1)  # four times faster than argmax on the CPU
        return values, tokens
    values, tokens = kernels.largest(logits)
    return values.to(logits.dtype), tokens


@cache
def _kernels(dtype: torch.dtype) -> Kernels | None:
    return kernels_for(dtype, "cpu")
