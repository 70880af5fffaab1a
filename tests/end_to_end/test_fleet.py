"""Fleet mode: a broker and a database configured, workers started by hand, the producer stores and asks."""

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from db.connect import connect, reading
from tests.end_to_end.processes import environment, producer, wait_until, worker

PROMPTS = 40


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"prompt": f"Name {n} animals.", "custom_id": f"p{n}"}) + "\n" for n in range(PROMPTS)
        )
    )
    return rows


def test_two_workers_share_a_batch_on_redis_and_postgresql_each_prompt_run_once(
    tmp_path: Path, inputs: Path, redis_url: str, postgres_url: str
) -> None:
    env = environment(tmp_path / "state", broker_url=redis_url, database_url=postgres_url) | {
        "OMP_NUM_THREADS": "1"
    }
    assert producer("db", "upgrade", env=env).returncode == 0
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    with worker(env, logs[0]), worker(env, logs[1]):
        wait_until(lambda: all("serves pair" in log.read_text() for log in logs), "both workers serve")

        submitted = producer("submit", str(inputs), "--max-tokens", "24", env=env)

        assert submitted.returncode == 0, submitted.stderr
        batch_id = submitted.stdout.strip()
        assert batch_id.startswith("batch_")
        watched = producer("watch", batch_id, env=env, timeout=180)
        assert watched.returncode == 0, watched.stderr
        status = json.loads(producer("status", batch_id, "--json", env=env).stdout)
        assert status["status"] == "completed"

    engine = connect(postgres_url)
    with reading(engine) as connection:
        rows = connection.execute(text("SELECT attempt, count(*) FROM prompts GROUP BY attempt")).all()
        assert [tuple(row) for row in rows] == [(1, PROMPTS)]
        workers = connection.execute(text("SELECT count(DISTINCT worker_id), count(*) FROM samples")).one()
        assert tuple(workers) == (2, PROMPTS)
    engine.dispose()
    assert batch_id in producer("list", env=env).stdout
    report = json.loads(producer("report", batch_id, "--json", env=env).stdout)
    assert report["prompts"]["succeeded"] == PROMPTS
    exported = producer("export", batch_id, "--format", "openai", env=env).stdout.splitlines()
    assert [json.loads(line)["custom_id"] for line in exported] == [f"p{n}" for n in range(PROMPTS)]


def test_a_batch_submitted_to_nobody_waits_for_the_first_worker(
    tmp_path: Path, inputs: Path, valkey_url: str, sqlite_url: str
) -> None:
    env = environment(tmp_path / "state", broker_url=valkey_url, database_url=sqlite_url)
    assert producer("db", "upgrade", env=env).returncode == 0

    submitted = producer("submit", str(inputs), "--max-tokens", "4", env=env)

    assert submitted.returncode == 0, submitted.stderr
    assert "no live worker" in submitted.stderr
    with worker(env, tmp_path / "worker.log"):
        watched = producer("watch", submitted.stdout.strip(), env=env, timeout=180)
        assert watched.returncode == 0, watched.stderr
