"""Kernels are compiled once; without a compiler the engine goes on in torch's own operations, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.worker.engine.tiny import save_tiny_model

WITHOUT_COMPILER = """
import logging, sys, torch
logging.basicConfig(level=logging.WARNING)
from pathlib import Path
from worker.engine import Engine, FolderModel, Pair, Sampling
for _ in range(2):
    engine = Engine(Pair(FolderModel(Path(sys.argv[1])), "prompt_lookup", dtype="float32"))
    results = engine.generate(["the thing in the thing in", "a"], Sampling(max_tokens=20))
print([result.token_ids for result in results])
"""


def test_without_a_compiler_the_output_is_the_same_and_the_log_says_so_once(tmp_path: Path):
    save_tiny_model(tmp_path / "model", hidden_size=64, head_dim=32, dtype=torch.float32)

    def run(**env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_COMPILER, str(tmp_path / "model")]
        return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True)

    compiled = run()
    fallback = run(CXX="no-such-compiler", SPECMILL_CACHE_DIR=str(tmp_path / "empty"))

    assert fallback.stdout == compiled.stdout
    assert "compiled CPU kernels" not in compiled.stderr
    assert fallback.stderr.count("running without compiled CPU kernels") == 1
    assert "no C++ compiler named no-such-compiler" in fallback.stderr
    assert "Install g++" in fallback.stderr


def test_two_processes_compile_once(tmp_path: Path):
    code = "from worker.engine.cpu.compiling import compiled_library as c; assert c() is not None"
    env = os.environ | {"SPECMILL_CACHE_DIR": str(tmp_path)}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(2)]

    assert [process.wait() for process in processes] == [0, 0]
    assert len(list(tmp_path.glob("kernels-*.so"))) == 1
    assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob("*.o"))
