"""Drafters on disk: the packagings that are public, read into one network."""

from pathlib import Path

from worker.engine.dspark.checkpoints import deepspec
from worker.engine.dspark.checkpoints.deepspec import save_network
from worker.engine.dspark.checkpoints.fields import Fields
from worker.engine.dspark.checkpoints.target import TargetFacts, check_target
from worker.engine.dspark.checkpoints.tensors import build_network, read_tensors
from worker.engine.dspark.network import DSparkNetwork

__all__ = ["TargetFacts", "load_network", "save_network"]


def load_network(folder: Path, target: TargetFacts, name: str | None = None) -> DSparkNetwork:
    """A drafter in eval mode, in the dtype and on the device of the target that it was trained for.

    `name` is how messages call it: the folder's path unless given. Raises ModelLoadError.
    """
    name = name or str(folder)
    config = deepspec.read(Fields.read(folder, name))
    check_target(config, target, name)
    return build_network(config, read_tensors(folder, name), target, name)
