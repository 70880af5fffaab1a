"""The script that waits for a GPU runs: all of its sections, on a CPU, with a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_every_section_ends_and_is_reported(tmp_path: Path):
    command = [sys.executable, "-m", "tests.gpu.run", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    needs_a_gpu = {"pinning", "graphs"}
    assert {name for name, section in found.items() if section["outcome"] == "skipped"} == needs_a_gpu
    assert {section["outcome"] for name, section in found.items() if name not in needs_a_gpu} == {"ok"}
    assert found["float32"]["found"]["greedy, draft_model"] == "3 of 3 the same"
    assert found["speculative"]["found"]["tok/s, 3 rows"] > 0
