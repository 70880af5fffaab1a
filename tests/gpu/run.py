"""What only a GPU can tell of the engine, in at most 8 minutes: `python -m tests.gpu.run [--out FOLDER]`.

Sections run one after the other, each in a process of its own with seconds of its own: one that fails, hangs
or loses the device leaves the others theirs. What was found is printed as it comes, and as a table at the
end; FOLDER/gpu.json has all of it, from the first section on. Exit code 1: a check failed, or a section did
not end. --smoke runs them on a CPU with a tiny model: its numbers mean nothing.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Sections are forks, which need not import all this again. Who has asked CUDA for devices forks without CUDA.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

from transformers.utils import logging

from tests.gpu import checks, speed
from tests.gpu.bench import Bench

TOTAL_SECONDS = 460.0
LEAST_SECONDS = 10.0


@dataclass(frozen=True)
class Section:
    name: str
    run: Callable[[Bench], None]
    seconds: float  # at most
    needs_gpu: bool = False


SECTIONS = (
    Section("models", checks.models, 60),
    Section("pinning", checks.pinning, 30, needs_gpu=True),
    Section("attention", checks.attention, 40),
    Section("float32", checks.float32, 60),
    Section("bfloat16", checks.bfloat16, 50),
    Section("graphs", checks.graphs, 40, needs_gpu=True),
    Section("plain", speed.plain, 80),
    Section("speculative", speed.speculative, 90),
    Section("transformers", speed.transformers, 80),
)


@dataclass
class Report:
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        return [name for name, found in self.sections.items() if found["outcome"] not in ("ok", "skipped")]

    def write(self, folder: Path | None) -> None:
        if folder is not None:
            (folder / "gpu.json").write_text(json.dumps(self.sections, indent=2) + "\n")

    def table(self) -> str:
        lines = [f"{'section':14}{'outcome':10}{'seconds':>8}  found"]
        for name, found in self.sections.items():
            lines.append(f"{name:14}{found['outcome']:10}{found['seconds']:8.1f}  {found.get('error', '')}")
            lines += [f"{'':34}{key}: {_short(value)}" for key, value in found.get("found", {}).items()]
        return "\n".join(lines)


def main() -> None:
    parser = ArgumentParser(description=__doc__, usage=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS)
    parser.add_argument("--only", nargs="+", choices=[section.name for section in SECTIONS])
    options = parser.parse_args()
    deadline = monotonic() + options.seconds
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for section in SECTIONS:
            if options.only and section.name not in ("models", *options.only):
                continue
            bench = Bench(Path(folder), options.smoke)
            report.sections[section.name] = run_section(section, bench, deadline - monotonic())
            report.write(options.out)
            print(json.dumps({section.name: report.sections[section.name]}), flush=True)
    print(report.table())
    sys.exit(1 if report.failed else 0)


def run_section(section: Section, bench: Bench, left: float) -> dict[str, Any]:
    if bench.smoke and section.needs_gpu:
        return {"outcome": "skipped", "seconds": 0.0, "error": "it needs a GPU"}
    seconds = min(section.seconds, left)
    if seconds < LEAST_SECONDS:
        return {"outcome": "late", "seconds": 0.0, "error": "no time was left"}
    began = monotonic()
    notes = bench.folder / f"{section.name}.json"
    process = multiprocessing.get_context("fork").Process(target=_run, args=(section, bench, notes, seconds))
    process.start()
    process.join(seconds)
    outcome = {0: "ok", 1: "failed", None: "hung"}.get(process.exitcode, f"died {process.exitcode}")
    if process.exitcode is None:
        process.kill()
        process.join()
    found = json.loads(notes.read_text()) if notes.exists() else {}
    return {"outcome": outcome, "seconds": round(monotonic() - began, 1), **found}


def _run(section: Section, bench: Bench, notes: Path, seconds: float) -> None:
    logging.disable_progress_bar()
    bench.begin(notes, seconds)
    try:
        section.run(bench)
    except BaseException as error:
        traceback.print_exc()
        bench.fail(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    sys.stdout.flush()
    os._exit(1 if bench.has_failed else 0)  # a lost device could hang what Python does at exit


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


if __name__ == "__main__":
    main()
