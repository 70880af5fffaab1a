"""Devices as the command line names them, and the environment that pins a process to one."""

import os
from dataclasses import dataclass

from worker.errors import ConfigurationError
from worker.gpus import list_gpus


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
            return _all_gpus() or _cpus(1)
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
    # A thread that waits for others spins, by default for milliseconds: on a busy machine on their very core.
    spins = os.environ.get("GOMP_SPINCOUNT") or "3000"
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": threads, "GOMP_SPINCOUNT": spins}
    return [Device("cpu", environment) for _ in range(count)]


def _all_gpus() -> list[Device]:
    lent = _lent()
    return [_gpu(index) for index in range(len(list_gpus()) if lent is None else len(lent))]


def _gpu(index: int) -> Device:
    lent = _lent()
    if lent is not None:
        if index >= len(lent):
            raise ConfigurationError(f"device {index}: CUDA_VISIBLE_DEVICES lends only {len(lent)} GPUs")
        # As it was given: an index there is in CUDA's own order, which need not be the driver's.
        return Device(f"cuda:{index}", {"CUDA_VISIBLE_DEVICES": lent[index]})
    gpus = list_gpus()
    if index >= len(gpus):
        found = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in gpus) or "none; is the NVIDIA driver there?"
        raise ConfigurationError(f"device {index}: there is no such GPU here. Found: {found}")
    return Device(f"cuda:{index}", {"CUDA_VISIBLE_DEVICES": gpus[index].uuid})


def _lent() -> list[str] | None:
    """The GPUs that a scheduler lent, if one did: numbers count among them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
