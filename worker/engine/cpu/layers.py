"""Modules that take the place of a model's own where the formula is the same, by fewer operations."""

import torch
from torch import Tensor, nn

from worker.engine.cpu.kernels import LANES, Kernels
from worker.engine.cpu.products import product_of


class FusedRMSNorm(nn.Module):
    def __init__(self, weight: Tensor, epsilon: float, kernels: Kernels) -> None:
        super().__init__()
        self.weight, self.epsilon, self._kernels = weight.detach().contiguous(), epsilon, kernels

    def forward(self, x: Tensor) -> Tensor:
        return self._kernels.rms_norm(x.contiguous(), self.weight, self.epsilon)


class GatedMlp(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(
        self,
        gate: nn.Linear,
        up: nn.Linear,
        down: nn.Linear,
        act: nn.Module,
        kernels: Kernels | None,
        *,
        int8: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up = product_of([gate, up], kernels, int8=int8)
        self.down = product_of([down], kernels, int8=int8)
        self._act = act
        self.kernels = kernels if is_silu(act) and gate.out_features % LANES == 0 else None

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up(x)
        if self.kernels:
            return self.down(self.kernels.silu_and_multiply(both))
        gate, up = both.chunk(2, dim=-1)
        return self.down(self._act(gate) * up)


def is_silu(act: nn.Module) -> bool:
    x = torch.linspace(-9, 9, 64)
    return torch.equal(act(x), nn.functional.silu(x))
