"""`producer submit` with nothing configured: embedded Valkey, SQLite, one local worker, the default pair."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.processes import BIN, environment, processes_using, producer, wait_until


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    yield folder
    left = processes_using(folder)
    for process in left:
        process.kill()
    assert not left, f"left running: {[process.cmdline() for process in left]}"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "batch_inputs"
    (folder / "more").mkdir(parents=True)
    (folder / "capital.txt").write_text("What is the capital of France?")
    (folder / "more" / "repeat.md").write_text(
        "Repeat this sentence: the cat sat on the mat, and the cat slept."
    )
    poem = {"prompt": "Write a line about the sea.", "temperature": 0.8, "seed": 7, "max_tokens": 12}
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Count to five.")]
    talk = {"messages": [{"role": role, "content": content} for role, content in turns]}
    rows = [{"custom_id": "poem"} | poem, {"custom_id": "talk"} | talk]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def query(state: Path, sql: str) -> list[tuple[object, ...]]:
    database = sqlite3.connect(f"file:{state / 'specmill.db'}?mode=ro", uri=True)
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()


def test_a_directory_becomes_rows_and_a_second_run_generates_nothing(state: Path, inputs: Path) -> None:
    env = environment(state)

    first = producer("submit", str(inputs), "--max-tokens", "24", env=env)

    assert first.returncode == 0, first.stderr
    assert "Traceback" not in first.stderr
    rows = query(
        state,
        "SELECT custom_id, p.status, p.attempt, s.text FROM prompts p JOIN samples s ON s.prompt_id = p.id",
    )
    assert {row[0] for row in rows} == {"capital.txt", "more/repeat.md", "poem", "talk"}
    assert {row[1:3] for row in rows} == {("succeeded", 1)}
    assert "Paris" in next(str(row[3]) for row in rows if row[0] == "capital.txt")
    assert query(state, "SELECT status FROM batches") == [("completed",)]
    assert processes_using(state) == []

    second = producer("submit", str(inputs), "--max-tokens", "24", env=env)

    (batch_id,) = query(state, "SELECT id FROM batches")[0]
    assert second.returncode == 0, second.stderr
    assert str(batch_id) in second.stdout + second.stderr
    assert query(state, "SELECT count(*) FROM samples") == [(4,)]


def test_every_column_of_a_sample_holds_what_was_measured(state: Path, inputs: Path) -> None:
    assert producer("submit", str(inputs), "--max-tokens", "48", env=environment(state)).returncode == 0

    database = sqlite3.connect(state / "specmill.db")
    database.row_factory = sqlite3.Row
    for row in database.execute("SELECT * FROM samples"):
        assert row["completion_tokens"] > 0
        assert row["prompt_tokens"] > 0
        for duration in ("queue_seconds", "prefill_seconds", "first_token_seconds", "decode_seconds"):
            assert row[duration] > 0, duration
        parts = row["queue_seconds"] + row["first_token_seconds"] + row["decode_seconds"]
        assert row["total_seconds"] == pytest.approx(parts, abs=0.01)
        assert row["num_steps"] >= row["num_spec_steps"]
        assert row["worker_id"]
        assert row["rows_in_flight"] >= 1
        histogram = json.loads(row["acceptance_histogram"] or "[]")
        assert sum(histogram) == row["num_spec_steps"]
        if row["num_draft_tokens"] is not None:
            assert sum(k * count for k, count in enumerate(histogram)) == row["num_accepted_draft_tokens"]
            length = 1 + row["num_accepted_draft_tokens"] / row["num_spec_steps"]
            assert row["mean_acceptance_length"] == pytest.approx(length)
        else:
            assert row["mean_acceptance_length"] is None
            assert row["draft_acceptance_rate"] is None
    copied = database.execute(
        "SELECT mean_acceptance_length FROM samples s JOIN prompts p ON p.id = s.prompt_id"
        " WHERE custom_id LIKE '%repeat%'"
    ).fetchone()
    assert copied[0] > 1, "copying from the prompt is what prompt lookup is for"
    database.close()


def test_ctrl_c_drains_and_the_next_submit_continues_the_batch(state: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "long"
    inputs.mkdir()
    # More than fit in flight (32), and only one of them short: however fast the machine is, some still
    # wait when the first is done and the rest of those in flight are drained.
    rows = [{"prompt": f"Tell a story about the number {n}", "max_tokens": 48 if n else 8} for n in range(44)]
    (inputs / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = environment(state)
    command = [BIN / "producer", "submit", str(inputs)]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(
        lambda: (
            (state / "specmill.db").exists()
            and query(state, "SELECT count(*) FROM sqlite_master WHERE name = 'prompts'") == [(1,)]
            and query(state, "SELECT count(*) FROM prompts WHERE status = 'succeeded'")[0][0] != 0
        ),
        "some prompts are done",
    )
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does

    _, errors = process.communicate(timeout=90)

    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert processes_using(state) == []
    assert query(state, "SELECT count(*) FROM prompts WHERE status = 'running'") == [(0,)]
    assert query(state, "SELECT status FROM batches") == [("in_progress",)]

    again = producer("submit", str(inputs), env=env, timeout=200)

    assert again.returncode == 0, again.stderr
    assert query(state, "SELECT status, count(*) FROM batches GROUP BY status") == [("completed", 1)]
    assert query(state, "SELECT count(*), count(DISTINCT prompt_id) FROM samples") == [(44, 44)]


def test_bad_items_are_named_and_the_good_ones_run(state: Path, inputs: Path) -> None:
    (inputs / "empty.txt").write_text("")
    (inputs / "latin1.txt").write_bytes("Größe".encode("latin-1"))
    with (inputs / "rows.jsonl").open("a") as file:
        file.write('{"custom_id": "broken", "prompt": \n')
        file.write('{"custom_id": "poem", "prompt": "again"}\n')
        file.write(json.dumps({"custom_id": "too-long", "prompt": "word " * 5000}) + "\n")

    done = producer("submit", str(inputs), "--max-tokens", "8", env=environment(state))

    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stdout + done.stderr
    for place in ("empty.txt", "latin1.txt", "rows.jsonl:3", "rows.jsonl:4", "too-long"):
        assert place in said
    assert query(state, "SELECT status, count(*) FROM prompts GROUP BY status ORDER BY status") == [
        ("failed", 1), ("succeeded", 4)
    ]  # fmt: skip
    code, message = query(state, "SELECT error_code, error_message FROM prompts WHERE status = 'failed'")[0]
    assert code == "prompt_too_long"
    assert "2048" in str(message)
