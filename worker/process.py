"""One worker process: one device, one pair, one Celery worker; the fleet starts it."""

import argparse
import copy
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.worker import WorkController
from celery.worker import state as celery_state

from db import fleet
from db.connect import writing
from db.errors import ConfigError, DatabaseError
from db.tables import WorkerState
from worker import logs, lost_connections
from worker.engine import Engine
from worker.engine.errors import EngineError
from worker.errors import EXIT_REFUSED, ConfigurationError
from worker.identity import describe_device, new_worker_id, versions
from worker.pairs import to_engine
from worker.preflight import Checked, check
from worker.reaper import Reaper
from worker.ringer import Ringer
from worker.runner import Runner
from worker.serving import Serving
from worker.starting import heard_of
from worker.tasks import register_bell
from worker.watchdog import Patience, Watchdog, work_waits
from worker.wire.app import BrokerError, make_app, queue_name
from worker.wire.pairs import UnknownPair, fingerprint

log = logging.getLogger("specmill.worker")

REFUSALS = (ConfigurationError, ConfigError, UnknownPair, BrokerError, DatabaseError, EngineError)

# A process whose runner is gone must end, whatever Celery or a poisoned CUDA context think of it.
LAST_RESORT_SECONDS = 20.0

# No step of a healthy engine takes this long; on a CPU a pass over a long prompt of a large model may.
STUCK_SECONDS = {"cpu": 3600.0, "cuda": 600.0}


class Process:
    """Wires the parts together and decides when they stop."""

    def __init__(self, pair: str, device: str, concurrency: int, grace: float) -> None:
        self._pair = pair
        self._device = device
        self._concurrency = concurrency
        self._grace = grace
        self._runner: Runner | None = None
        self._draining = False
        self._died = False
        self._has_succeeded = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        threading.Thread(target=self._follow_the_fleet, daemon=True).start()
        checked = check(self._pair)
        worker_id = new_worker_id()
        self._register(checked, worker_id)
        try:
            self._serve(checked, worker_id)
        except BaseException:
            with writing(checked.db) as conn:
                fleet.stop_worker(conn, worker_id)
            raise
        return 1 if self._died else 0

    def _register(self, checked: Checked, worker_id: str) -> None:
        name, uuid = describe_device(self._device)
        with writing(checked.db) as conn:
            fleet.register_worker(
                conn,
                id=worker_id,
                host=os.uname().nodename,
                pid=os.getpid(),
                device=self._device,
                device_name=name,
                device_uuid=uuid,
                pair=self._pair,
                pair_fingerprint=fingerprint(checked.pair),
                slots=self._concurrency,
                max_rows=checked.pair.max_rows,
                versions=versions(),
            )

    def _serve(self, checked: Checked, worker_id: str) -> None:
        started = time.monotonic()
        with heard_of(checked.db, worker_id):
            engine = Engine(to_engine(checked.pair, self._device.split(":")[0]))
        self._announce_pair(checked, engine, worker_id)
        app = make_app(checked.broker_url)
        ringer = Ringer(app, self._pair)
        serving = Serving(
            worker_id=worker_id,
            pair=self._pair,
            tokenizer=copy.deepcopy(engine.tokenizer),
            defaults={**engine.generation_defaults, "max_tokens": checked.pair.max_tokens},
            max_rows=checked.pair.max_rows,
            slots=self._concurrency,
            lease_seconds=checked.lease_seconds,
        )
        runner = Runner(
            checked.db, serving, engine, checked.spool, ringer.ring, self._on_success, self._on_death
        )
        register_bell(app, runner)
        controller = make_controller(app, self._pair, worker_id, self._concurrency)
        reaper = Reaper(checked.db, self._pair, checked.lease_seconds, ringer.ring)
        watchdog = Watchdog(
            runner.vitals,
            lambda: not ringer.is_away and work_waits(checked.db, self._pair),
            _end_at_once,
            Patience(step=STUCK_SECONDS["cpu" if self._device == "cpu" else "cuda"]),
        )
        self._runner = runner
        runner.start()
        reaper.start()
        watchdog.start()
        log.info("%s serves pair %s, loaded in %.1f s", worker_id, self._pair, time.monotonic() - started)
        controller.start()  # until a signal or the runner's death
        if not self._draining and not self._died:
            log.error("Celery's worker ended by itself")
            self._died = True
        runner.drain(self._grace)
        runner.join()
        watchdog.stop()
        reaper.stop()

    def _announce_pair(self, checked: Checked, engine: Engine, worker_id: str) -> None:
        with writing(checked.db) as conn:
            # Loading took long; others must see that this worker is there, and next that it serves.
            fleet.heartbeat(conn, worker_id, WorkerState.STARTING, {})
            fleet.register_pair(
                conn,
                self._pair,
                fingerprint(checked.pair),
                checked.pair.model_dump(mode="json", exclude_none=True),
                engine.generation_defaults,
                engine.context_limit,
                worker_id,
            )
            fleet.heartbeat(conn, worker_id, WorkerState.READY, {})

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._runner is None:
            raise SystemExit(0)  # nothing is held yet
        self._drain()

    def _drain(self) -> None:
        """The first time with grace; asked again, at once."""
        if self._runner is not None:
            self._runner.drain(0.0 if self._draining else self._grace)
        self._draining = True
        celery_state.should_stop = 0

    def _on_death(self, _error: BaseException) -> None:
        self._died = True
        celery_state.should_stop = 1
        threading.Timer(LAST_RESORT_SECONDS, os._exit, args=(1,)).start()

    def _on_success(self) -> None:
        """Tell the fleet once that this machine can serve: dying later is no part of a crash loop."""
        if not self._has_succeeded:
            self._has_succeeded = True
            with suppress(OSError):  # nobody's standard input, where no fleet started us
                os.write(0, b".")

    def _follow_the_fleet(self) -> None:
        """The fleet holds our standard input's other end: when it closes, nobody is left to stop us."""
        with suppress(ConnectionError):  # it died with our word unread
            while os.read(0, 1):  # not sys.stdin, whose lock a daemon thread must not hold at exit
                pass
        os.kill(os.getpid(), signal.SIGTERM)


def _end_at_once(reason: str) -> None:
    """Not by way of threads that may be stuck; the leases end by themselves."""
    log.error("%s: this process ends, for a fresh one to take its place", reason)
    logging.shutdown()
    os._exit(1)


def make_controller(app: Celery, pair: str, worker_id: str, concurrency: int) -> WorkController:
    """Celery's worker without its command line: no banner, no signal handlers, no logging of its own."""
    lost_connections.install()
    controller = app.WorkController(
        hostname=f"{worker_id}@{os.uname().nodename}",
        concurrency=concurrency,
        queues=[queue_name(pair)],
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    if controller.pool_cls is not TaskPool:
        raise ConfigurationError(
            f"Celery would run its {app.conf.worker_pool} pool; only threads works here: "
            "solo blocks the event loop and prefork forks after CUDA. Unset what chose it."
        )
    return controller


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.process", description=__doc__)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    options = parser.parse_args()
    logs.configure(f"worker {options.device} [{os.getpid()}]")
    try:
        code = Process(options.pair, options.device, options.concurrency, options.grace).run()
    except REFUSALS as error:
        log.error("%s", error)
        code = EXIT_REFUSED
    logging.shutdown()
    # Not sys.exit: threads of Celery or CUDA that hang must not keep a finished process alive.
    os._exit(code)


if __name__ == "__main__":
    main()
