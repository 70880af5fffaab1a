"""Devices as the command line names them; each process is pinned before torch is imported."""

import os

import pytest

from worker.devices import parse
from worker.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")  # no nvidia-smi


def test_cpu_processes_share_the_cores_and_see_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    devices = parse("cpu:3")
    assert [device.name for device in devices] == ["cpu"] * 3
    assert all(
        device.environment == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"} for device in devices
    )


def test_a_number_of_threads_that_was_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert parse("cpu")[0].environment["OMP_NUM_THREADS"] == "1"


def test_numbers_name_gpus() -> None:
    assert [(d.name, d.environment) for d in parse("0,2")] == [
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("cuda:2", {"CUDA_VISIBLE_DEVICES": "2"}),
    ]


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
