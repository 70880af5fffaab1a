"""Exports: every prompt once, in order, in three formats."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.producer.conftest import Run
from tests.producer.working import work

NAMES = [f"p{number}" for number in range(450)]  # more than two pages of the database's


@pytest.fixture
def batch(fleet: Engine, run: Run, tmp_path: Path) -> str:
    rows: list[dict[str, Any]] = [{"prompt": "a", "custom_id": name} for name in NAMES]
    rows[1] = {"prompt": "b", "custom_id": "p1", "n": 2, "metadata": {"k": "v"}}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    batch_id = run("submit", tmp_path / "rows.jsonl").stdout.strip()
    work(fleet, failing={"p2"})
    return batch_id


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_jsonl_has_every_prompt_with_its_samples_in_order(run: Run, batch: str) -> None:
    found = lines(run("export", batch).stdout)
    assert [line["custom_id"] for line in found] == NAMES
    assert found[1]["metadata"] == {"k": "v"}
    assert [sample["sample_index"] for sample in found[1]["samples"]] == [0, 1]
    assert found[0]["samples"][0]["mean_acceptance_length"] == 2.5
    assert found[0]["error"] is None
    assert found[2]["samples"] == []
    assert found[2]["error"] == {"code": "prompt_too_long", "message": "3000 tokens of 2048"}


def test_openai_has_failures_in_a_file_of_their_own(run: Run, batch: str, tmp_path: Path) -> None:
    result = run("export", batch, "--format", "openai", "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 0
    assert result.stdout == ""
    good = lines((tmp_path / "out.jsonl").read_text())
    failed = lines((tmp_path / "out.errors.jsonl").read_text())
    assert [line["custom_id"] for line in good] == [name for name in NAMES if name != "p2"]
    assert [line["custom_id"] for line in failed] == ["p2"]
    assert set(good[0]) == set(failed[0]) == {"id", "custom_id", "response", "error"}
    assert failed[0]["response"] is None
    assert failed[0]["error"] == {"code": "prompt_too_long", "message": "3000 tokens of 2048"}
    response = good[1]["response"]
    assert response["status_code"] == 200
    assert response["body"]["object"] == "chat.completion"
    assert [choice["index"] for choice in response["body"]["choices"]] == [0, 1]
    assert response["body"]["choices"][0]["message"] == {"role": "assistant", "content": "an answer"}
    assert response["body"]["usage"] == {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}
    assert not list(tmp_path.glob("*.partial"))


def test_openai_on_standard_output_asks_where_failures_go(run: Run, batch: str, tmp_path: Path) -> None:
    refused = run("export", batch, "--format", "openai")
    assert refused.exit_code == 2
    assert "1 prompt without a result: name a file for them with --errors" in refused.stderr
    told = run("export", batch, "--format", "openai", "--errors", tmp_path / "e.jsonl")
    assert len(lines(told.stdout)) == len(NAMES) - 1
    assert len(lines((tmp_path / "e.jsonl").read_text())) == 1


def test_raw_prompts_are_text_completions(local: Engine, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once")
    batch_id = run("submit", tmp_path / "a.txt", "--raw").stdout.strip()
    work(local)
    body = lines(run("export", batch_id, "--format", "openai").stdout)[0]["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "an answer"


CONTENT = [
    {"token": "an", "logprob": -0.5, "bytes": [97, 110], "top_logprobs": [
        {"token": "an", "logprob": -0.5, "bytes": [97, 110]}, {"token": "the", "logprob": -1.5, "bytes": []},
    ]},
    {"token": " answer", "logprob": -0.25, "bytes": [], "top_logprobs": []},
]  # fmt: skip


@pytest.mark.parametrize("raw", [False, True])
def test_openai_s_logprobs_are_as_its_endpoint_writes_them(
    local: Engine, run: Run, tmp_path: Path, raw: bool
) -> None:
    (tmp_path / "a.txt").write_text("Once")
    batch_id = run("submit", tmp_path / "a.txt", "--logprobs", "2", *["--raw"] * raw).stdout.strip()
    work(local, logprobs=CONTENT)

    choice = lines(run("export", batch_id, "--format", "openai").stdout)[0]["response"]["body"]["choices"][0]

    if raw:
        assert choice["logprobs"] == {
            "tokens": ["an", " answer"],
            "token_logprobs": [-0.5, -0.25],
            "top_logprobs": [{"an": -0.5, "the": -1.5}, {}],
            "text_offset": [0, 2],
        }
    else:
        assert choice["logprobs"] == {"content": CONTENT, "refusal": None}


def test_csv_is_one_line_a_sample_quoted_as_it_must(run: Run, batch: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("export", batch, "--format", "csv").stdout)))
    assert len(rows) == len(NAMES) + 1
    assert [row["custom_id"] for row in rows[:4]] == ["p0", "p1", "p1", "p2"]
    assert rows[0]["text"] == "an answer"
    assert (rows[3]["status"], rows[3]["text"], rows[3]["error_message"]) == (
        "failed",
        "",
        "3000 tokens of 2048",
    )


def test_reused_prompts_export_the_samples_they_reuse(
    fleet: Engine, run: Run, batch: str, tmp_path: Path
) -> None:
    again = run("submit", tmp_path / "rows.jsonl").stdout.strip()
    assert again != batch
    work(fleet)
    found = lines(run("export", again).stdout)
    assert [len(line["samples"]) for line in found[:3]] == [1, 2, 1]


def test_an_unfinished_batch_is_exported_with_a_warning(local: Engine, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    batch_id = run("submit", tmp_path / "a.txt", tmp_path / "b.txt").stdout.strip()
    work(local, limit=1)
    result = run("export", batch_id)
    assert f"{batch_id} is in_progress: 1 prompt not done yet" in result.stderr
    assert [line["status"] for line in lines(result.stdout)] == ["succeeded", "pending"]


def test_a_file_that_cannot_be_written_is_named(run: Run, batch: str) -> None:
    result = run("export", batch, "-o", "/nowhere/out.jsonl")
    assert result.exit_code == 1
    assert "Error: /nowhere/out.jsonl cannot be written: No such file or directory" in result.stderr
