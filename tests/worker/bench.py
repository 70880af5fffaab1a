"""A runner on a real database, with an engine that answers from a table."""

from sqlalchemy import Engine

from db import fleet
from db.connect import writing
from db.tables import WorkerState
from tests.worker.engine.tiny import tiny_tokenizer
from tests.worker.table_engine import TableEngine
from worker.engine_thread import SteppingEngine
from worker.runner import Runner
from worker.serving import Serving
from worker.spool import Spool

LEASE_SECONDS = 1.2  # renewed every 0.2 s


class Bench:
    """A runner between a database and a table-driven engine; counts the bells it rings."""

    def __init__(
        self,
        db: Engine,
        spool: Spool,
        worker_id: str = "worker_1",
        *,
        max_rows: int = 4,
        slots: int = 2,
        in_place: SteppingEngine | None = None,
    ) -> None:
        """An engine of the tiny model may take the table's place."""
        self.db = db
        self.spool = spool
        self.engine = TableEngine(tiny_tokenizer(), max_rows)
        self.rung = 0
        self.successes = 0
        self.death: BaseException | None = None
        defaults = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 64}
        self.serving = Serving(
            worker_id, "tiny", self.engine.tokenizer, defaults, max_rows, slots, LEASE_SECONDS
        )
        with writing(db) as conn:
            fleet.register_worker(
                conn,
                id=worker_id,
                host="here",
                pid=1,
                device="cpu",
                device_name="a table",
                device_uuid=None,
                pair="tiny",
                pair_fingerprint="0" * 16,
                slots=slots,
                max_rows=max_rows,
                versions={},
                state=WorkerState.READY,
            )
        self.runner = Runner(
            db, self.serving, in_place or self.engine, spool, self.ring, self.succeed, self.die
        )
        self.runner.start()

    def ring(self, count: int) -> None:
        self.rung += count

    def succeed(self) -> None:
        self.successes += 1

    def die(self, error: BaseException) -> None:
        self.death = error

    def work(self) -> None:
        """One bell, and those that its claims ring, until no bell is left."""
        self.rung += 1
        while self.rung:
            self.rung -= 1
            self.runner.hear().wait()

    def close(self) -> None:
        self.runner.drain(0)
        assert self.runner.join(30), "the runner does not end"
