"""This machine's GPUs as the driver lists them: without torch, which is imported only after pinning."""

from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True)
class Gpu:
    """Its place is nvidia-smi's index; CUDA may count otherwise, and so a process is pinned by the uuid."""

    index: int
    uuid: str  # "GPU-..."
    name: str


def list_gpus() -> list[Gpu]:
    """Empty where there is no NVIDIA driver."""
    import pynvml

    nvml = cast(Any, pynvml)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(index, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle))
