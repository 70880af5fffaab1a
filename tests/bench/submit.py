"""How fast, and in how little memory, `producer submit` stores a large JSONL: `make bench-submit`.

Runs the real command in a process of its own against a real Valkey, into SQLite and into PostgreSQL, and
prints prompts per second over its wall clock (the interpreter's start included) and peak resident memory.
"""

import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import run_postgres, run_valkey

PROMPTS = 100_000
PROMPT_BYTES = 1_000


def write_prompts(path: Path) -> None:
    """Distinct prompts of one kilobyte each, the same in every run."""
    letters = random.Random(7).choices(string.ascii_lowercase + " ", k=PROMPT_BYTES)
    filler = "".join(letters)
    with path.open("w") as file:
        for number in range(PROMPTS):
            file.write(
                json.dumps({"custom_id": f"p{number}", "prompt": f"{number:08d} {filler}"[:PROMPT_BYTES]})
                + "\n"
            )


def measure(prompts: Path, database_url: str, broker_url: str, state: Path) -> tuple[float, float]:
    """Seconds of wall clock and MiB of peak resident memory of one submission."""
    env = os.environ | {
        "SPECMILL_DATABASE_URL": database_url,
        "SPECMILL_BROKER_URL": broker_url,
        "SPECMILL_STATE_DIR": str(state),
    }
    producer = str(Path(sys.executable).with_name("producer"))
    subprocess.run([producer, "db", "upgrade"], env=env, check=True, stderr=subprocess.DEVNULL)
    start = time.perf_counter()
    process = subprocess.Popen(
        [producer, "submit", str(prompts), "--no-wait"], env=env, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the submission failed with exit code {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, run_valkey() as broker_url, run_postgres() as postgres_url:
        root = Path(folder)
        prompts = root / "prompts.jsonl"
        write_prompts(prompts)
        print(f"{PROMPTS:,} prompts of {PROMPT_BYTES:,} bytes")
        for name, url in (("sqlite", f"sqlite:///{root / 'specmill.db'}"), ("postgresql", postgres_url)):
            seconds, peak = measure(prompts, url, broker_url, root / name)
            print(f"{name:12} {PROMPTS / seconds:10,.0f} prompts/s {seconds:8.2f} s {peak:8.0f} MiB peak")


if __name__ == "__main__":
    main()
