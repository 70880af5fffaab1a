"""What the README shows is run: its queries on both databases, its rows, its settings, its code."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, select, text

from db.connect import reading, writing
from db.queue import Failed, complete
from db.speedups import NewComparison, record
from db.tables import Batch
from producer.cli import main
from tests.db.given import answered, claimed, submitted, worker
from worker.wire.pairs import load_pairs

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> Sequence[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def finished(database: Engine) -> Engine:
    """A batch of three prompts, one of which failed, answered by one worker."""
    worker(database)
    submitted(database, "a", "b", "c")
    prompts = claimed(database)
    answered(database, prompts[:2])
    with writing(database) as conn:
        complete(
            conn, "worker-1", [], [Failed(prompts[2].lease, "prompt_too_long", "the prompt has 9 tokens")]
        )
    return database


def answers(database: Engine, number: int) -> list[dict[str, Any]]:
    with reading(database) as conn:
        return [dict(row._mapping) for row in conn.execute(text(blocks("sql")[number]))]


def test_there_are_six_queries() -> None:
    assert len(blocks("sql")) == 6


def test_query_did_speculation_pay(finished: Engine) -> None:
    (row,) = answers(finished, 0)
    assert row["method"] == "prompt_lookup"
    assert row["mean_acceptance_length"] == pytest.approx(1 + 12 / 8)
    assert row["draft_acceptance_rate"] == pytest.approx(12 / 16)
    assert row["tokens_per_step"] == pytest.approx(20 / 8)


def test_query_which_prompts_gain_most(finished: Engine) -> None:
    assert {row["custom_id"] for row in answers(finished, 1)} == {"a", "b"}


def test_query_what_failed(finished: Engine) -> None:
    (row,) = answers(finished, 2)
    assert row == {"error_code": "prompt_too_long", "prompts": 1, "example": "the prompt has 9 tokens"}


def test_query_who_did_the_work(finished: Engine) -> None:
    (row,) = answers(finished, 3)
    assert (row["host"], row["device_name"], row["samples"], row["tokens"]) == ("alpha", "a CPU", 2, 20)
    assert row["tokens_per_row_second"] == pytest.approx(20 / 2.0)


def test_query_how_latency_grows_with_the_rows_in_flight(finished: Engine) -> None:
    (row,) = answers(finished, 4)
    assert (row["rows_in_flight"], row["samples"], row["queue"]) == (2, 2, 1.0)
    assert row["seconds_per_token"] == pytest.approx(0.08)


def test_query_how_much_faster_than_plain_decoding(finished: Engine) -> None:
    with writing(finished) as conn:
        batch_id = conn.execute(select(Batch.id)).scalar_one()
        blocks = [NewComparison(batch_id, n, 4, 1, 100, 400, 2.0, 50, 400 + 200 * n, 2.0) for n in (1, 2, 3)]
        record(conn, "worker-1", blocks)
    (row,) = answers(finished, 5)
    assert (row["speedup_vs_baseline"], row["speedup_low"], row["speedup_high"]) == (2.0, 1.5, 2.5)
    assert (row["rows_in_flight"], row["blocks"], row["speedup"]) == (4, 3, 2.0)


def test_the_rows_are_read(tmp_path: Path) -> None:
    (rows,) = blocks("json")
    file = tmp_path / "rows.jsonl"
    file.write_text(rows)
    done = CliRunner().invoke(main, ["submit", str(file), "--dry-run"])
    assert done.exit_code == 0, done.stderr


def test_the_settings_declare_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings,) = blocks("toml")
    file = tmp_path / "specmill.toml"
    file.write_text(settings)
    monkeypatch.setenv("SPECMILL_CONFIG", str(file))
    assert load_pairs()["qwen"].gamma == 4


def test_the_engine_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(code, {})
    assert "Paris" in capsys.readouterr().out
