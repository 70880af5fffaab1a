"""Devices as the command line names them; each process is pinned before torch is imported."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from worker.devices import parse
from worker.errors import ConfigurationError


class Nvml(ModuleType):
    """What the driver's library answers, for so many GPUs; None: there is no driver."""

    NVMLError = RuntimeError

    def __init__(self, count: int | None) -> None:
        super().__init__("pynvml")
        self.count = count

    def nvmlInit(self) -> None:
        if self.count is None:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int | None:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}000"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"H{handle}00"


def gpus(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(count))


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    gpus(monkeypatch, None)


def test_cpu_processes_share_the_cores_and_see_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    devices = parse("cpu:3")
    assert [device.name for device in devices] == ["cpu"] * 3
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "3000"}
    assert all(device.environment == environment for device in devices)


def test_what_was_set_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GOMP_SPINCOUNT", "100")
    environment = parse("cpu")[0].environment
    assert (environment["OMP_NUM_THREADS"], environment["GOMP_SPINCOUNT"]) == ("1", "100")


def test_numbers_name_gpus_which_are_pinned_by_what_no_order_can_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(monkeypatch, 3)
    assert [(d.name, d.environment) for d in parse("0,2")] == [
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-0000"}),
        ("cuda:2", {"CUDA_VISIBLE_DEVICES": "GPU-2000"}),
    ]


def test_all_is_a_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    assert [device.environment["CUDA_VISIBLE_DEVICES"] for device in parse("all")] == ["GPU-0000", "GPU-1000"]


@pytest.mark.parametrize(
    ("count", "found"), [(2, r"0 \(H000\), 1 \(H100\)"), (None, "none; is the NVIDIA driver")]
)
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, count: int | None, found: str
) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(ConfigurationError, match=f"device 2: there is no such GPU here. Found: {found}"):
        parse("2")


def test_devices_are_found_without_torch() -> None:
    program = "import sys; from worker.devices import parse; parse('all'); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == "False\n"


def test_numbers_count_among_the_gpus_that_a_scheduler_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-abc")
    assert [device.environment["CUDA_VISIBLE_DEVICES"] for device in parse("all")] == ["4", "GPU-abc"]
    assert parse("1")[0].environment == {"CUDA_VISIBLE_DEVICES": "GPU-abc"}
    with pytest.raises(ConfigurationError, match="lends only 2"):
        parse("2")


def test_all_is_the_cpu_where_there_is_no_gpu() -> None:
    assert [device.name for device in parse("all")] == ["cpu"]


@pytest.mark.parametrize("text", ["", "gpu", "cpu:0", "cpu:x", "0,0", "0;1", "-1"])
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected all, cpu, cpu:N"):
        parse(text)
