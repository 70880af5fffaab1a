"""Who this worker process is: the columns of its row that no setting decides."""

import platform
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch

from worker.errors import ConfigurationError


def new_worker_id() -> str:
    """Fresh for every process start, so that a restarted worker cannot speak for its predecessor."""
    return f"worker_{uuid.uuid4().hex[:16]}"


def describe_device(device: str) -> tuple[str, str | None]:
    """The device's name, and its uuid where it has one."""
    if device == "cpu":
        return _cpu_name(), None
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"device {device}: torch {torch.__version__} finds no GPU; "
            "install a CUDA build of torch and check the driver, or start with --devices cpu."
        )
    properties = torch.cuda.get_device_properties(0)  # the only one this process can see
    # As nvidia-smi writes it; torch leaves the prefix out.
    return properties.name, "GPU-" + str(cast(object, properties.uuid)).removeprefix("GPU-")


def versions() -> dict[str, str]:
    packages = ("specmill", "torch", "transformers", "celery")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
