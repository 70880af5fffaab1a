"""Devices as the command line names them, and the environment that pins a process to one."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from worker.errors import ConfigurationError


@dataclass(frozen=True)
class Device:
    """One process's device. The environment is set before torch is imported, and so cannot be missed."""

    name: str  # "cpu" or "cuda:N", N as the person counts
    environment: dict[str, str]


def parse(text: str) -> list[Device]:
    """`all`, `0,2`, `cpu` or `cpu:N` (N processes)."""
    match text.split(":"):
        case ["cpu"]:
            return _cpus(1)
        case ["cpu", count] if count.isdecimal() and int(count) > 0:
            return _cpus(int(count))
        case ["all"]:
            return [_gpu(index) for index in range(_count_gpus())] or _cpus(1)
        case [indices] if indices and all(part.strip().isdecimal() for part in indices.split(",")):
            chosen = [int(part) for part in indices.split(",")]
            if len(set(chosen)) == len(chosen):
                return [_gpu(index) for index in chosen]
        case _:
            pass
    raise ConfigurationError(
        f'devices "{text}": expected all, cpu, cpu:N, or distinct GPU numbers such as 0,2'
    )


def _cpus(count: int) -> list[Device]:
    # More threads than cores make every matrix product wait for the slowest.
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, _cores() // count))
    return [Device("cpu", {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": threads}) for _ in range(count)]


def _gpu(index: int) -> Device:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return Device(f"cuda:{index}", {"CUDA_VISIBLE_DEVICES": str(index)})
    names = [name for name in visible.split(",") if name]  # a scheduler lent these: count among them
    if index >= len(names):
        raise ConfigurationError(f"device {index}: CUDA_VISIBLE_DEVICES lends only {len(names)} GPUs")
    return Device(f"cuda:{index}", {"CUDA_VISIBLE_DEVICES": names[index]})


def _count_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name])
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
