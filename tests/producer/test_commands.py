"""What holds for every command: help, streams, exit codes, and errors in one clear line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

from db.connect import writing
from db.speedups import NewComparison, record
from db.tables import Batch
from producer.cli import COMMANDS
from tests.producer.conftest import Run
from tests.producer.working import register, work

PRODUCER = Path(sys.executable).with_name("producer")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"prompt {name}", "custom_id": name}) + "\n" for name in "abc")
    )
    return path


def submitted(run: Run, prompts: Path) -> str:
    return run("submit", prompts).stdout.strip()


@pytest.mark.parametrize("command", [*([name] for name in COMMANDS), ["db", "upgrade"], []])
def test_every_help_has_an_example(run: Run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Example:\n  " in result.stdout
    assert "  producer " in result.stdout or "_URL=" in result.stdout


def test_help_answers_at_once() -> None:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([PRODUCER, "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3  # the least: other tests may be busy


def test_no_command_imports_torch() -> None:
    """Every module of the producer, whichever command would load it."""
    code = (
        "import pkgutil, sys, importlib, producer\n"
        "for module in pkgutil.walk_packages(producer.__path__, 'producer.'):\n"
        "    importlib.import_module(module.name)\n"
        "assert 'producer.submitting' in sys.modules and 'producer.keeper' in sys.modules\n"
        "print({'torch', 'transformers'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_shell_completion_works() -> None:
    words = {"COMP_WORDS": "producer rep", "COMP_CWORD": "1"}
    env = os.environ | {"_PRODUCER_COMPLETE": "bash_complete"} | words
    done = subprocess.run([PRODUCER], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,report"]


def test_list_status_and_json(fleet: Engine, run: Run, prompts: Path) -> None:
    assert "no batches yet" in run("list").stderr
    batch_id = submitted(run, prompts)
    register(fleet)
    work(fleet, limit=2)

    assert f"{batch_id}  in_progress  2/3" in run("list").stdout
    assert json.loads(run("list", "--json").stdout)[0]["prompts"]["succeeded"] == 2
    status = run("status", batch_id)
    assert status.exit_code == 0
    assert status.stdout.startswith(f"{batch_id}  in_progress  2/3 prompts")
    told = json.loads(run("status", batch_id[:14], "--json").stdout)
    assert (told["status"], told["done"], told["total"], told["live_workers"]) == ("in_progress", 2, 3, 1)


@pytest.mark.parametrize("command", ["status", "watch"])
def test_the_exit_code_says_how_a_batch_ended(local: Engine, run: Run, prompts: Path, command: str) -> None:
    all_good = submitted(run, prompts)
    work(local)
    assert run(command, all_good).exit_code == 0
    some_failed = run("submit", prompts, "--fresh").stdout.strip()
    work(local, failing={"b"})
    assert run(command, some_failed).exit_code == 3
    stopped = run("submit", prompts, "--fresh").stdout.strip()
    with writing(local) as conn:
        conn.execute(Batch.__table__.update().where(Batch.id == stopped).values(status="cancelled"))
    assert run(command, stopped).exit_code == 4


def test_an_unknown_batch_lists_recent_ones(fleet: Engine, run: Run, prompts: Path) -> None:
    assert fleet
    batch_id = submitted(run, prompts)
    result = run("status", "nightly")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "'nightly'" in result.stderr
    assert batch_id in result.stderr


def test_report_as_text_and_as_json(fleet: Engine, run: Run, prompts: Path) -> None:
    batch_id = submitted(run, prompts)
    work(fleet, failing={"b"})
    text = run("report", batch_id).stdout
    for part in (
        f"Batch {batch_id}",
        "3: 2 succeeded, 1 failed",
        "10 read, 20 generated",
        "in the queue",
        "prompt_lookup",
        "2.50",  # acceptance length: 1 + 12 accepted / 8 steps
        "75.0%",
        "Finish reasons: stop 2",
        "prompt_too_long: 1 prompt",
        f"b ({prompts}:2): 3000 tokens of 2048",
    ):
        assert part in text
    told = json.loads(run("report", batch_id, "--json").stdout)
    assert told["prompts"]["failed"] == 1
    assert told["drafters"][0]["acceptance_length"] == 2.5


def test_the_report_says_what_drafting_brought_and_which_samples_to_doubt(
    fleet: Engine, run: Run, prompts: Path
) -> None:
    batch_id = submitted(run, prompts)
    work(fleet, quality_flag="repeats_itself")
    with writing(fleet) as conn:
        # 2, 3 and 4 tokens in the time of one
        blocks = [NewComparison(batch_id, n, 4, 1, 9, 36, 1.0, 9, 36 * n, 1.0) for n in (2, 3, 4)]
        record(conn, "worker-1", blocks)
    text = run("report", batch_id).stdout
    assert "Speed-up over plain decoding: 3.00x (95%: 2.00 to 4.00), by 3 blocks of plain steps" in text
    assert "repeats_itself: 3 samples, such as a, b, c\n    the output ends in a loop" in text
    told = json.loads(run("report", batch_id, "--json").stdout)
    assert (told["speedup_vs_baseline"], told["speedup_low"], told["speedup_blocks"]) == (3.0, 2.0, 3)
    assert told["flagged"][0]["samples"] == 3


def test_show_has_the_prompt_as_given_and_as_the_model_saw_it(fleet: Engine, run: Run, prompts: Path) -> None:
    batch_id = submitted(run, prompts)
    assert "(not run yet)" in run("show", batch_id, "a").stdout
    work(fleet)
    shown = run("show", batch_id, "a").stdout
    for part in ("[user] prompt a", "<user>as seen", "an answer", "10 tokens in 1.00 s", f"({prompts}:1)"):
        assert part in shown
    assert json.loads(run("show", batch_id, "a", "--json").stdout)["samples"][0]["text"] == "an answer"
    missing = run("show", batch_id, "z")
    assert missing.exit_code == 1
    assert 'has no prompt "z"' in missing.stderr


def test_reap_says_what_it_did(fleet: Engine, run: Run, prompts: Path) -> None:
    assert fleet
    submitted(run, prompts)
    run("reap")  # the first pass after a gap lets the living renew
    told = json.loads(run("reap", "--json").stdout)
    assert told["expired_leases"] == 0
    assert told["ended_batches"] == []


def test_db_upgrade_mends_what_the_mismatch_message_names(
    run: Run, prompts: Path, sqlite_url: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECMILL_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("SPECMILL_BROKER_URL", valkey_url)
    refused = run("submit", prompts)
    assert refused.exit_code == 1
    assert "producer db upgrade" in refused.stderr
    assert run("db", "upgrade").exit_code == 0
    assert run("submit", prompts).exit_code == 0


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (
            {"DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/specmill"},
            ["127.0.0.1:1", "cannot be reached", "SPECMILL_DATABASE_URL"],
        ),
        ({"DATABASE_URL": "oracle://x"}, ["not supported"]),
        ({"BROKER_URL": "redis://:secret@127.0.0.1:1/0"}, ["redis://:***@127.0.0.1:1/0 is unreachable"]),
        ({"BROKER_URL": "amqp://x"}, ["only a single Redis or Valkey"]),
        ({"STATE_DIR": "/dev/null/state", "BROKER_URL": None}, ["/dev/null/state cannot be made"]),
        ({"CONFIG": "/nowhere/specmill.toml"}, ["SPECMILL_CONFIG names /nowhere/specmill.toml"]),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_clear_message(
    run: Run,
    prompts: Path,
    valkey_url: str,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    parts: list[str],
) -> None:
    for name, value in ({"BROKER_URL": valkey_url} | settings).items():
        if value is not None:
            monkeypatch.setenv(f"SPECMILL_{name}", value)
    result = run("submit", prompts)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "secret" not in result.stderr
    for part in parts:
        assert part in result.stderr


def test_a_read_only_state_folder_is_named(run: Run, prompts: Path, tmp_path: Path) -> None:
    """A folder in the database's place: the same refusal for root, who may write anywhere."""
    (tmp_path / "state" / "specmill.db").mkdir(parents=True)
    result = run("submit", prompts)
    assert result.exit_code == 1
    assert f"{tmp_path / 'state' / 'specmill.db'} is a folder" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "rows.jsonl", "--temperature", "3"],
        ["submit", "rows.jsonl", "--completion-window", "soon"],
        ["submit", "rows.jsonl", "--metadata", "nothing"],
        ["submit", "-", "rows.jsonl"],
        ["submit", "rows.jsonl", "--raw", "--system", "x"],
        ["submit", "rows.jsonl", *["--stop", "x"] * 17],
        ["submit", "rows.jsonl", "--regex", "(a"],
        ["submit", "rows.jsonl", "--regex", "a", "--response-format", "json"],
        ["submit", "rows.jsonl", "--response-format", "nowhere.json"],
        ["submit", "rows.jsonl", "--logit-bias", "198"],
        ["submit", "rows.jsonl", "--logit-bias", "198=101"],
        ["submit", "rows.jsonl", "--min-p", "1.1"],
        ["export", "b", "--errors", "e.jsonl"],
        ["frobnicate"],
    ],
)
@pytest.mark.usefixtures("prompts")
def test_wrong_usage_exits_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_machine_output_is_alone_on_standard_output_and_uncoloured(
    fleet: Engine, run: Run, prompts: Path
) -> None:
    assert fleet
    result = run("submit", prompts)
    assert result.stdout.count("\n") == 1
    assert "\x1b" not in result.stderr
