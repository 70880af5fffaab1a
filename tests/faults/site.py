"""A place to break: a broker, a database with its witness, and a fleet of worker processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
from sqlalchemy import Engine, select

from db import batches, fleet, schema
from db.batches import NewBatch, NewPrompt
from db.connect import connect, reading, writing
from db.tables import Batch
from tests.faults import audit, journal, triggers
from tests.faults.servers import Broker, HeldLock, Postgres, Proxy
from tests.servers import die_with_parent, folder_for_sockets, free_port
from worker.wire.app import make_app
from worker.wire.bells import ring

LEASE_SECONDS = 2.0
MAX_ROWS = 16
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
MODULES = {"table": "tests.faults.table_worker", "tiny": "tests.faults.real_worker"}


@dataclass
class Site:
    name: str
    folder: Path
    database: str
    pair: str
    processes: int
    broker: Broker
    postgres: Postgres | None
    lock: HeldLock | None
    proxy: Proxy | None
    db: Engine
    environment: dict[str, str]
    answer: Callable[[str, int], str]
    fleet: subprocess.Popen[bytes] | None = None
    orphans: list[psutil.Process] = field(default_factory=list[psutil.Process])  # of killed supervisors

    @property
    def log(self) -> Path:
        return self.folder / "fleet.log"

    def start_fleet(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.faults.fleet",
            MODULES[self.pair],
            str(self.processes),
            self.pair,
        ]
        with self.log.open("ab") as log:
            self.fleet = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def keep_fleet(self) -> None:
        """As a service manager would: a fleet whose first start finds a server away ends, by design."""
        if self.fleet is not None and self.fleet.poll() is not None:
            self.start_fleet()

    def workers(self) -> list[psutil.Process]:
        """The worker processes that are alive now."""
        assert self.fleet is not None
        try:
            return psutil.Process(self.fleet.pid).children()
        except psutil.NoSuchProcess:
            return []

    def ready_workers(self) -> int:
        with reading(self.db) as conn:
            return sum(worker.state == "ready" for worker in fleet.live_workers(conn, self.pair, 5.0))

    def submit(self, prompts: Sequence[NewPrompt], priority: int = 1, window: timedelta | None = None) -> str:
        with writing(self.db) as conn:
            pair = fleet.get_pair(conn, self.pair)
            assert pair is not None
            new = NewBatch(None, "campaign", pair.name, pair.fingerprint, {}, {}, priority, None, window, 7)
            batch_id = batches.create(conn, new)
            batches.add_prompts(conn, batch_id, 0, prompts)
            batches.seal(conn, batch_id, [], 0)
        return batch_id

    def ring(self, count: int, window: int = 32) -> None:
        app = make_app(self.broker.url)
        try:
            ring(app, self.pair, count, window=window)
        finally:
            app.close()

    def is_open(self, batch_id: str) -> bool:
        with reading(self.db) as conn:
            return conn.execute(select(Batch.status).where(Batch.id == batch_id)).scalar_one() in OPEN

    def bells(self) -> journal.Bells:
        return journal.read(self.folder)


def _declare(folder: Path, lease_seconds: float, max_rows: int) -> Path:
    path = folder / "specmill.toml"
    path.write_text(
        f"""
        lease_seconds = {lease_seconds}

        [pairs.table]
        target = {{ folder = "{folder}" }}
        method = "none"
        max_rows = {max_rows}

        [pairs.tiny]
        target = {{ folder = "{folder}/model" }}
        dtype = "float64"
        max_rows = 8
        max_tokens = 24
        """
    )
    return path


@contextmanager
def run_site(
    database: str,
    pair: str = "table",
    *,
    processes: int = 2,
    through_proxy: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    max_rows: int = MAX_ROWS,
    witness: bool = True,
    answer: Callable[[str, int], str],
    **environment: str,
) -> Generator[Site]:
    """`database`: sqlite or postgres. `pair`: table, or tiny for the real engine on a tiny model.

    The witness costs about as much as what it watches: measurements do without.
    """
    with folder_for_sockets() as folder, ExitStack() as cleanup:
        if pair == "tiny":
            from tests.worker.engine.tiny import save_tiny_model

            save_tiny_model(folder / "model")
        ports = (free_port(), free_port()) if through_proxy else None
        broker = Broker(folder, ports[0] if ports else None)
        cleanup.callback(broker.end, signal.SIGTERM)
        broker.start()
        proxy = Proxy(ports[1], ports[0]) if ports else None
        if proxy is not None:
            cleanup.callback(proxy.close)
        postgres = lock = None
        if database == "postgres":
            postgres = Postgres(folder)
            cleanup.callback(postgres.end, signal.SIGINT)
            postgres.start()
            url = postgres.url
        else:
            url = f"sqlite:///{folder}/specmill.db?timeout=1"
            lock = HeldLock(folder / "specmill.db")
            cleanup.callback(lock.give_back)
        db = connect(url)
        cleanup.callback(db.dispose)
        schema.upgrade(db)
        if witness:
            with writing(db) as conn:
                audit.install(conn)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SPECMILL_")} | {
            "SPECMILL_CONFIG": str(_declare(folder, lease_seconds, max_rows)),
            "SPECMILL_STATE_DIR": str(folder / "state"),
            "SPECMILL_DATABASE_URL": url,
            "SPECMILL_BROKER_URL": f"redis://127.0.0.1:{ports[1]}/0" if ports else broker.url,
            "OMP_NUM_THREADS": "1",
            triggers.FOLDER_VARIABLE: str(folder),
            **environment,
        }
        cleanup.callback(journal.install(folder))
        name = f"{database}, {pair}{', network' if through_proxy else ''}"
        site = Site(name, folder, database, pair, processes, broker, postgres, lock, proxy, db, env, answer)
        cleanup.callback(_end_fleet, site)
        site.start_fleet()
        until(lambda: site.ready_workers() == processes, f"the workers are ready: {site.log}", 120)
        yield site


def _end_fleet(site: Site) -> None:
    """With their supervisor stopped, nobody starts them again."""
    assert site.fleet is not None
    workers = [*site.workers(), *site.orphans]
    site.fleet.kill()
    site.fleet.wait()
    for worker in workers:
        try:
            worker.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(workers, 10)


def until(condition: Callable[[], object], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.05)
