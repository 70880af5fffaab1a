"""Drafters on disk: the packagings that are public, read into one network."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from worker.engine.dspark.checkpoints import deepspec, dflash_config, speculators
from worker.engine.dspark.checkpoints.deepspec import save_network
from worker.engine.dspark.checkpoints.fields import Fields
from worker.engine.dspark.checkpoints.target import TargetFacts, check_target
from worker.engine.dspark.checkpoints.tensors import build_network, read_tensors
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.errors import ModelLoadError

__all__ = ["TargetFacts", "load_network", "read_config", "save_network"]


@dataclass(frozen=True, slots=True)
class _Packaging:
    read: Callable[[Fields], DSparkConfig]
    tensor_name: Callable[[str], str | None]  # as the network calls it; None: left out


_DEEPSPEC = _Packaging(deepspec.read, str)
_DFLASH_CONFIG = _Packaging(dflash_config.read, dflash_config.tensor_name)
_SPECULATORS = _Packaging(speculators.read, speculators.tensor_name)


def load_network(folder: Path, target: TargetFacts, name: str | None = None) -> DSparkNetwork:
    """A drafter in eval mode, in the dtype and on the device of the target that it was trained for.

    `name` is how messages call it: the folder's path unless given. Raises ModelLoadError.
    """
    name = name or str(folder)
    packaging, config = _read(folder, name)
    check_target(config, target, name)
    tensors: dict[str, Tensor] = {}
    for key, tensor in read_tensors(folder, name).items():
        if (ours := packaging.tensor_name(key)) is not None:
            tensors[ours] = tensor
    return build_network(config, tensors, target, name)


def read_config(folder: Path, name: str) -> DSparkConfig:
    """What a drafter's config.json says, without its weights."""
    return _read(folder, name)[1]


def _read(folder: Path, name: str) -> tuple[_Packaging, DSparkConfig]:
    fields = Fields.read(folder, name)
    packaging = _packaging(fields, name)
    return packaging, packaging.read(fields)


def _packaging(fields: Fields, name: str) -> _Packaging:
    if "speculators_model_type" in fields:
        return _SPECULATORS
    architectures = fields.words("architectures")
    if deepspec.ARCHITECTURE in architectures:
        return _DEEPSPEC
    if set(architectures) & {*dflash_config.DSPARK, *dflash_config.DFLASH}:
        return _DFLASH_CONFIG
    raise ModelLoadError(
        f"the drafter {name} is a {' or '.join(architectures)}: DSpark and DFlash are run, as packed by "
        "DeepSpec, SpecForge, Liquid, z-lab and speculators (a language model drafts by method draft_model)"
    )
