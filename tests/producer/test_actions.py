"""What people do to a batch from the command line; the queue's side is in tests/db."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, update

from db import fleet as workers
from db import queue
from db.clock import now
from db.connect import reading, writing
from db.reaping import reap
from db.tables import Batch
from tests.producer.conftest import Run
from tests.producer.working import PAIR, register, work
from worker.wire.app import make_app
from worker.wire.bells import waiting


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"prompt {name}", "custom_id": name}) + "\n" for name in "abc")
    )
    return path


@pytest.fixture
def batch_id(fleet: Engine, run: Run, prompts: Path) -> str:
    """Three prompts that wait, and a live worker."""
    register(fleet)
    return run("submit", prompts).stdout.strip()


def status(run: Run, batch_id: str) -> dict[str, object]:
    told = json.loads(run("status", batch_id, "--json").stdout)
    prompts = {name: count for name, count in told["prompts"].items() if count}
    return {"status": told["status"], "paused": told["paused"], "prompts": prompts}


def without_bells(valkey_url: str) -> None:
    with redis.Redis(unix_socket_path=valkey_url.removeprefix("redis+socket://")) as client:
        client.flushall()


def bells(valkey_url: str) -> int:
    app = make_app(valkey_url)
    try:
        return waiting(app, PAIR)
    finally:
        app.close()


def test_cancel_keeps_what_is_finished_and_is_done_when_it_returns(
    fleet: Engine, run: Run, batch_id: str
) -> None:
    work(fleet, limit=1)
    with writing(fleet) as conn:
        queue.claim(conn, PAIR, "worker-1", 1, 60)

    result = run("cancel", batch_id)

    assert result.exit_code == 0
    assert result.stdout == f"{batch_id} is cancelled: 2 prompts cancelled, 1 kept\n"
    assert status(run, batch_id) == {
        "status": "cancelled",
        "paused": False,
        "prompts": {"succeeded": 1, "cancelled": 2},
    }
    assert run("status", batch_id).exit_code == 4

    again = run("cancel", batch_id, "--json")
    assert again.exit_code == 0
    told = json.loads(again.stdout)
    assert (told["changed"], told["status"], told["prompts"]["cancelled"]) == (False, "cancelled", 2)


def test_cancelling_what_has_ended_says_so(fleet: Engine, run: Run, batch_id: str) -> None:
    work(fleet)
    result = run("cancel", batch_id)
    assert (result.exit_code, result.stdout) == (0, f"{batch_id} is completed already: nothing to cancel\n")


def test_a_large_batch_is_cancelled_in_chunks(fleet: Engine, run: Run, tmp_path: Path) -> None:
    assert fleet
    rows = tmp_path / "many.jsonl"
    rows.write_text("".join(json.dumps({"prompt": str(number)}) + "\n" for number in range(2500)))
    batch_id = run("submit", rows).stdout.strip()
    assert "2,500 prompts cancelled, 0 kept" in run("cancel", batch_id).stdout


def test_pause_and_resume(fleet: Engine, run: Run, batch_id: str, valkey_url: str) -> None:
    paused = run("pause", batch_id)
    assert (paused.exit_code, paused.stdout) == (0, f"{batch_id} is paused\n")
    assert f"producer resume {batch_id}" in paused.stderr
    assert status(run, batch_id)["paused"] is True
    assert "paused" in run("status", batch_id).stdout
    assert f"{batch_id}  in_progress, paused" in run("list").stdout
    assert work(fleet) == []
    assert run("pause", batch_id).stdout == f"{batch_id} is paused already\n"

    without_bells(valkey_url)
    resumed = run("resume", batch_id)

    assert (resumed.exit_code, resumed.stdout) == (0, f"{batch_id} goes on\n")
    assert bells(valkey_url) == 3
    assert status(run, batch_id)["paused"] is False
    assert run("resume", batch_id).stdout == f"{batch_id} is not paused: nothing to resume\n"
    assert len(work(fleet)) == 3


def test_a_broker_that_is_away_does_not_hinder_a_resume(
    run: Run, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows say it; a reaper rings later."""
    run("pause", batch_id)
    monkeypatch.setenv("SPECMILL_BROKER_URL", "redis://:secret@127.0.0.1:1/0")
    result = run("resume", batch_id)
    assert result.exit_code == 0
    assert "warning: broker redis://:***@127.0.0.1:1/0 took no bell" in result.stderr
    assert status(run, batch_id)["paused"] is False


def test_priority_by_name(fleet: Engine, run: Run, batch_id: str, prompts: Path) -> None:
    second = run("submit", prompts, "--fresh", "--name", "urgent").stdout.strip()

    assert run("priority", "urgent", "high").stdout == f"{second} has high priority\n"

    assert json.loads(run("status", second, "--json").stdout)["priority"] == "high"
    assert {prompt.batch_id for prompt in work(fleet, limit=3)} == {second}
    assert run("priority", batch_id, "normal").stdout == f"{batch_id} has normal priority already\n"
    told = json.loads(run("priority", batch_id, "low", "--json").stdout)
    assert (told["changed"], told["priority"]) == (True, "low")


def test_retry_failed_rings_and_the_batch_ends_well(
    fleet: Engine, run: Run, batch_id: str, valkey_url: str
) -> None:
    work(fleet, failing={"b", "c"})
    without_bells(valkey_url)

    result = run("retry", batch_id, "--failed")

    assert (result.exit_code, result.stdout) == (0, f"{batch_id} is in_progress: 2 prompts to run again\n")
    assert bells(valkey_url) == 2
    assert status(run, batch_id)["prompts"] == {"succeeded": 1, "pending": 2}
    again = run("retry", batch_id, "--failed")
    assert (again.exit_code, again.stdout) == (0, f"{batch_id} has nothing to retry\n")
    assert len(work(fleet)) == 2
    assert run("status", batch_id).exit_code == 0


def test_retry_by_name(fleet: Engine, run: Run, batch_id: str) -> None:
    work(fleet, failing={"b", "c"})
    result = run("retry", batch_id, "--custom-id", "b", "--custom-id", "a", "--json")
    told = json.loads(result.stdout)
    assert (told["retried"], told["reopened"], told["left"]) == (1, True, {"a": "succeeded"})
    assert 'warning: "a" is succeeded: left as it is' in result.stderr
    unknown = run("retry", batch_id, "--custom-id", "z")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert f'Error: {batch_id} has no prompt "z"' in unknown.stderr


def test_what_was_cancelled_or_expired_is_taken_up_again(fleet: Engine, run: Run, batch_id: str) -> None:
    run("cancel", batch_id)
    assert run("retry", batch_id, "--failed").stdout == f"{batch_id} has nothing to retry\n"
    assert "3 prompts to run again" in run("retry", batch_id, "--cancelled").stdout
    with writing(fleet) as conn:
        conn.execute(update(Batch).values(deadline=now(conn) - timedelta(seconds=1)))
        reap(conn, 60)
    assert status(run, batch_id)["status"] == "expired"

    result = run("retry", batch_id, "--expired")

    assert "its deadline had passed and is removed" in result.stderr
    assert status(run, batch_id)["prompts"] == {"pending": 3}
    with writing(fleet) as conn:
        conn.execute(update(Batch).values(deadline=now(conn) - timedelta(seconds=1)))
        reap(conn, 60)
    told = json.loads(run("retry", batch_id, "--expired", "--completion-window", "1h", "--json").stdout)
    assert told["deadline"] is not None


def test_without_a_worker_it_is_said(fleet: Engine, run: Run, batch_id: str) -> None:
    with writing(fleet) as conn:
        workers.stop_worker(conn, "worker-1")
    run("pause", batch_id)
    assert 'no live worker serves pair "smollm2"' in run("resume", batch_id).stderr


@pytest.mark.parametrize("command", ["cancel", "pause", "resume", "retry", "priority"])
def test_an_unknown_batch_is_one_message(local: Engine, run: Run, command: str) -> None:
    assert local
    arguments = {"retry": ["--failed"], "priority": ["high"]}.get(command, [])
    result = run(command, "nightly", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: No batch has the id, name or id prefix 'nightly'")


@pytest.mark.parametrize("command", ["pause", "resume", "priority"])
def test_what_has_ended_can_no_longer_be_changed(
    local: Engine, run: Run, prompts: Path, command: str
) -> None:
    batch_id = run("submit", prompts).stdout.strip()
    work(local)
    result = run(command, batch_id, *(["high"] if command == "priority" else []))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {batch_id} is completed: it can no longer be" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["retry", "b"],
        ["retry", "b", "--failed", "--custom-id", "a"],
        ["retry", "b", "--failed", "--completion-window", "0s"],
        ["priority", "b", "urgent"],
        ["prune", "--older-than", "long"],
        ["prune", "--older-than", "9999999d"],
    ],
)
def test_wrong_usage_exits_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_prune_deletes_old_batches_and_says_what_is_left_and_why(
    local: Engine, run: Run, prompts: Path
) -> None:
    first = run("submit", prompts).stdout.strip()
    work(local)
    with prompts.open("a") as file:
        file.write(json.dumps({"prompt": "prompt d", "custom_id": "d"}) + "\n")
    second = run("submit", prompts).stdout.strip()
    work(local)
    assert run("prune").stdout == "nothing to delete: no batch ended so long ago\n"
    with writing(local) as conn:
        conn.execute(
            update(Batch).where(Batch.id == first).values(completed_at=now(conn) - timedelta(days=31))
        )

    kept = run("prune")
    assert kept.stdout == f"left {first}, 3 prompts: its results are reused by {second}\n"
    assert kept.exit_code == 0

    tried = json.loads(run("prune", "--older-than", "0s", "--dry-run", "--json").stdout)
    assert ([batch["id"] for batch in tried["deleted"]], tried["left"]) == ([second, first], [])
    latest = json.loads(run("prune", "--older-than", "0s", "--keep-latest", "--json").stdout)
    assert latest["deleted"] == []
    assert {batch["id"]: batch["reason"] for batch in latest["left"]} == {
        second: "it is the latest of its source",
        first: f"its results are reused by {second}",
    }

    done = run("prune", "--older-than", "0s")

    assert done.stdout == f"deleted {second}, 4 prompts\ndeleted {first}, 3 prompts\n"
    assert "no batches yet" in run("list").stderr


def test_an_action_on_a_batch_that_is_named_touches_no_other(fleet: Engine, run: Run, prompts: Path) -> None:
    one = run("submit", prompts, "--name", "one").stdout.strip()
    run("submit", prompts, "--name", "two")
    for command in ("pause", "resume", "cancel"):
        run(command, "two")
    assert status(run, one) == {"status": "in_progress", "paused": False, "prompts": {"pending": 3}}
    with reading(fleet) as conn:
        assert queue.pending_count(conn, PAIR) == 3
