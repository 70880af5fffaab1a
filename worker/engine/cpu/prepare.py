"""Makes a loaded model fast on the CPU: modules swapped in place, its own code still runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from worker.engine.cpu.decoder import fuse_layers
from worker.engine.cpu.kernels import LANES, Kernels, kernels_for, rounding_error
from worker.engine.cpu.layers import FusedRMSNorm, GatedMlp
from worker.engine.cpu.linear import PackedLinear, PartOfProduct, SharedProduct
from worker.engine.cpu.products import can_multiply
from worker.engine.cpu.rotation import rotate_by_kernel

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_INT8_ERROR = 0.1  # of the largest output; another formula errs by more
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True, slots=True)
class _Means:
    """What modules can be made faster with."""

    dtype: torch.dtype
    kernels: Kernels | None
    packs: bool  # there is a faster layout of weights
    int8: bool


@torch.no_grad()
def prepare(
    model: nn.Module, dtype: torch.dtype, device: str, *, int8: bool = False, taps: Sequence[int] = ()
) -> None:
    """Outputs stay the same but for rounding. What is not known to be faster and equal stays as it is.

    With `int8` the weights of all linear layers are rounded to 8 bits. `taps` are decoder layers at whose
    outputs somebody will look.
    """
    on_cpu = torch.device(device).type == "cpu"
    means = _Means(dtype, kernels_for(dtype, device), on_cpu and (int8 or can_multiply(dtype)), int8)
    for module in list(model.modules()):
        if means.packs:
            _fuse_projections(module, means)
        if means.kernels:
            rotate_by_kernel(module, means.kernels)
        for name, child in list(module.named_children()):
            if (faster := _faster(child, means)) is not None:
                setattr(module, name, faster)
    if means.kernels and means.kernels.can_multiply:
        fuse_layers(model, means.kernels, taps)


def _fuse_projections(module: nn.Module, means: _Means) -> None:
    layers = [getattr(module, name, None) for name in _PROJECTIONS]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if len(linear) < len(layers) or len({layer.in_features for layer in linear}) > 1:
        return
    shared = SharedProduct(linear, means.kernels, int8=means.int8)
    for index, (name, layer) in enumerate(zip(_PROJECTIONS, linear, strict=True)):
        setattr(module, name, PartOfProduct(shared, index, layer))


def _faster(module: nn.Module, means: _Means) -> nn.Module | None:
    """What takes the module's place, if anything does."""
    if means.packs and type(module) is nn.Linear and module.weight.dtype == means.dtype:
        return PackedLinear(module, means.kernels, int8=means.int8)
    if means.packs and {name for name, _ in module.named_children()} == _MLP:
        return _faster_mlp(module, means)
    if means.kernels and type(module).__name__.endswith("RMSNorm"):
        return _faster_norm(module, means.dtype, means.kernels)
    return None


def _faster_mlp(module: nn.Module, means: _Means) -> nn.Module | None:
    gate, up, down, act = (getattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))
    if not all(type(layer) is nn.Linear and layer.weight.dtype == means.dtype for layer in (gate, up, down)):
        return None
    faster = GatedMlp(gate, up, down, act, means.kernels, int8=means.int8)
    return _if_equal(module, faster, gate.in_features, means.dtype, _INT8_ERROR if means.int8 else None)


def _faster_norm(module: nn.Module, dtype: torch.dtype, kernels: Kernels) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, nn.Parameter) or not isinstance(epsilon, float):
        return None
    if weight.dtype != dtype or weight.dim() != 1 or len(weight) % LANES:
        return None
    return _if_equal(module, FusedRMSNorm(weight, epsilon, kernels), len(weight), dtype)


def _if_equal(
    module: nn.Module, faster: nn.Module, dim: int, dtype: torch.dtype, tolerance: float | None = None
) -> nn.Module | None:
    """The faster one, if it answers as the model's own does: names alone do not tell a formula."""
    tolerance = rounding_error(dtype) if tolerance is None else tolerance
    x = torch.randn(3, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    own, ours = module(x).float(), faster(x).float()
    error = (own - ours).abs().max() / own.abs().max().clamp(min=1e-6)
    return faster if error < tolerance else None
