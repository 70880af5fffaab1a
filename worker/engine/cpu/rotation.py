"""Rotary embedding by one kernel instead of a dozen operations, in the model's own attention modules.

Their code calls a function beside it, `apply_rotary_pos_emb`. Each module gets a forward of the same code
with that one name bound to ours; the code's own module and other models stay as they are.
"""

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from worker.engine.cpu.kernels import LANES, Kernels

_NAME = "apply_rotary_pos_emb"
Rotate = Callable[..., tuple[Tensor, Tensor]]


def rotate_by_kernel(module: nn.Module, kernels: Kernels) -> None:
    """Does nothing to a module that has no such function, or one of another formula."""
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType) or _NAME not in forward.__code__.co_names:
        return
    original = cast(Rotate, forward.__globals__.get(_NAME))
    if not _is_rotation_of_halves(original, kernels):
        return
    bound = FunctionType(
        forward.__code__,
        forward.__globals__ | {_NAME: _rotation(original, kernels)},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    bound.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(bound, module)


def _rotation(original: Rotate, kernels: Kernels) -> Rotate:
    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not (_fits(q, cos, sin, kernels) and _fits(k, cos, sin, kernels)):
            return original(q, k, cos, sin, *args, **kwargs)
        return kernels.rotate(q, cos, sin), kernels.rotate(k, cos, sin)

    return rotate


def _fits(x: Tensor, cos: Tensor, sin: Tensor, kernels: Kernels) -> bool:
    return (
        x.dtype == cos.dtype == sin.dtype == kernels.dtype
        and x.dim() == 4
        and x.stride(-1) == 1
        and x.shape[-1] % (2 * LANES) == 0
        and cos.shape == sin.shape == (1, x.shape[2], x.shape[3])
        and cos.is_contiguous()
        and sin.is_contiguous()
    )


def _is_rotation_of_halves(original: Rotate, kernels: Kernels) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 64, generator=generator).to(kernels.dtype) for heads in (4, 2))
    cos, sin = (torch.randn(1, 3, 64, generator=generator).to(kernels.dtype) for _ in range(2))
    try:
        expected = original(q, k, cos, sin)
    except Exception:  # it takes other arguments, so it is another formula
        return False
    ours = _rotation(original, kernels)(q, k, cos, sin)
    return all(torch.allclose(a, b, rtol=1e-2, atol=1e-5) for a, b in zip(ours, expected, strict=True))
