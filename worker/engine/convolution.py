"""Short convolutions, as in LFM2: a row's last few inputs are all that they remember.

Those inputs are cached by position, as keys are: a row is then rolled back, moved, shared and preempted like
any other, where a state of the last few alone would need its history of a pass, and to be kept for each
beginning that prompts may have in common. It costs a hidden size per token and layer: in 16 bits LFM2-1.2B
has 53 KB a token instead of 12 (Qwen3-1.7B, of attention alone, 115). A state that sums up all of a row's
past has no such form.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from worker.engine.cache import Attends, layer_index
from worker.engine.errors import EngineError
from worker.engine.quiet import quiet

_CHILDREN = {"conv", "in_proj", "out_proj"}
_TRIED = 5  # tokens, more than a kernel is long
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output; 16 bits: less exact


class ShortConvolution(nn.Module):
    """Takes the place of a model's own: b, c, x = in(hidden); out(c * convolution(b * x)).

    Each token sees its own row's past, wherever in the pass the row is.
    """

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        module = cast(Any, own)
        self.in_proj, self.out_proj = module.in_proj, module.out_proj
        self.layer_idx = layer_index(own)
        weight, bias = cast(Tensor, module.conv.weight), cast(Tensor | None, module.conv.bias)
        self._dtype = torch.promote_types(weight.dtype, torch.float32)  # round once, as a convolution does
        self._kernel = weight[:, 0].T.to(self._dtype).contiguous()  # [length, hidden]
        self._bias = None if bias is None else bias.to(self._dtype)

    def forward(self, hidden_states: Tensor, packed: Attends | None = None, **_: Any) -> Tensor:
        if packed is None:
            raise EngineError("this model does not pass keyword arguments on to its convolutions")
        before, after, x = self.in_proj(hidden_states).chunk(3, dim=-1)
        recent = packed.recent(self, before * x, len(self._kernel)).to(self._dtype)
        y = recent[:, 0] * self._kernel[0]
        for place in range(1, len(self._kernel)):  # in this order, whatever else is in the pass
            y.addcmul_(recent[:, place], self._kernel[place])
        if self._bias is not None:
            y += self._bias
        return self.out_proj(after * y.to(x.dtype)[None])


class _Whole:
    """Stands in for a pass: one row from its first token on, and no cache."""

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:  # noqa: ARG002 (part of the protocol)
        padded = nn.functional.pad(inputs[0], (0, 0, length - 1, 0))
        return padded.unfold(0, length, 1).transpose(1, 2)


@torch.no_grad()
def replace_convolutions(model: nn.Module) -> None:
    """Known by their modules, and believed once they answer alike; others stay, and are not served."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if is_short_convolution(child) and (ours := _if_equal(child)) is not None:
                setattr(module, name, ours)


def is_short_convolution(module: nn.Module) -> bool:
    if {name for name, _ in module.named_children()} != _CHILDREN or not hasattr(module, "layer_idx"):
        return False
    convolution = cast(Any, module).conv
    return (
        isinstance(convolution, nn.Conv1d)
        and convolution.groups == convolution.in_channels == convolution.out_channels
        and convolution.stride == convolution.dilation == (1,)
    )


def width_of(module: nn.Module) -> int:
    """Numbers that a short convolution has to remember of a token."""
    return cast(nn.Conv1d, cast(Any, module).conv).in_channels


def _if_equal(own: nn.Module) -> ShortConvolution | None:
    ours = ShortConvolution(own)
    weight = cast(Tensor, cast(Any, own).conv.weight)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, _TRIED, weight.shape[0], generator=generator).to(weight)
    with quiet():  # which kernels its own code would rather have, no one need know
        right = own(x)
    answer = ours(x, packed=cast(Any, _Whole()))
    error = (right - answer).abs().max() / right.abs().max().clamp(min=1e-6)
    return ours if error <= _ROUNDING.get(weight.dtype, 2e-2) else None
