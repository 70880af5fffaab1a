"""A tiny pair, declared in a specmill.toml that every setting is read from."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.faults import triggers
from tests.worker.bench import Bench
from tests.worker.engine.tiny import save_tiny_model
from tests.worker.queued import Queued, submit
from tests.worker.started import Start, Started
from worker.spool import Spool
from worker.wire.pairs import fingerprint, get_pair


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and a draft model whose tokenizer differs."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "tiny")
    save_tiny_model(folder / "stranger", seed=1)
    tokenizer = folder / "stranger" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    tokenizer.write_text(json.dumps(content))
    return folder


@pytest.fixture
def tiny_toml(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Beside the models; a short lease, so that what the dead held comes back soon."""
    path = tiny_folder / "specmill.toml"
    path.write_text(
        f"""
        lease_seconds = 2

        [pairs.tiny]
        target = {{ folder = "{tiny_folder}/tiny" }}
        dtype = "float64"
        max_rows = 4
        max_tokens = 24

        [pairs.mismatched]
        target = {{ folder = "{tiny_folder}/tiny" }}
        draft = {{ folder = "{tiny_folder}/stranger" }}
        method = "draft_model"
        dtype = "float64"

        [pairs.missing]
        target = {{ folder = "{tiny_folder}/not-there" }}
        """
    )
    monkeypatch.setenv("SPECMILL_CONFIG", str(path))
    return path


@pytest.fixture
def start(
    tiny_toml: Path,  # noqa: ARG001 (declares the pair)
    valkey_url: str,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Start]:
    """Starts `worker start`; what still runs at the end is killed.

    Only with `real` do the processes load the pair, and torch, which takes seconds; else they answer from a
    table, each prompt in some steps of `step` seconds.
    """
    monkeypatch.setenv("SPECMILL_BROKER_URL", valkey_url)
    monkeypatch.setenv("SPECMILL_DATABASE_URL", database_url)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(triggers.FOLDER_VARIABLE, str(tmp_path))
    started: list[Started] = []

    def start(
        devices: str = "cpu", pair: str = "tiny", *, real: bool = False, step: float = 0.02, **options: Any
    ) -> Started:
        log = tmp_path / f"log{len(started)}"
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = [
            sys.executable,
            "-m",
            "worker.cli" if real else "tests.worker.table_cli",
            "start",
            f"--devices={devices}",
            f"--pair={pair}",
            *flags,
        ]
        with log.open("w") as output:
            env = {**os.environ, "SPECMILL_FAULTS_STEP": str(step)}
            process = subprocess.Popen(command, stdout=output, stderr=output, text=True, env=env)
        started.append(Started(process, log))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            children = one.children()
            one.process.kill()
            one.process.wait()
            for child in children:
                child.kill()


@pytest.fixture
def submit_tiny(database: Engine, tiny_toml: Path) -> Callable[..., Queued]:  # noqa: ARG001 (a fixture)
    def submit_tiny(prompts: list[dict[str, Any]], sampling: dict[str, Any] | None = None) -> Queued:
        return submit(database, prompts, fingerprint=fingerprint(get_pair("tiny")), sampling=sampling)

    return submit_tiny


@pytest.fixture
def bench(database: Engine, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(database, Spool(tmp_path, "tests"))
    yield bench
    bench.close()
