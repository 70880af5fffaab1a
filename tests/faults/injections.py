"""The faults: each begins at one time and ends at another, drawn from the round's seed."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import redis

from tests.faults import triggers
from tests.faults.site import Site

Act = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """`lasts`: seconds from `begin` to `end`, at least and at most. `deaths`: of processes that hold work."""

    name: str
    begin: Act
    end: Act = field(default=lambda: None)
    lasts: tuple[float, float] = (0.0, 0.0)
    deaths: int = 0


def kill_worker(site: Site, rng: random.Random) -> Fault:
    return Fault("kill -9 of a worker", lambda: _signal_one(site, rng, signal.SIGKILL), deaths=1)


def kill_all_workers(site: Site, rng: random.Random) -> Fault:  # noqa: ARG001 (all faults are made alike)
    def kill() -> None:
        for worker in site.workers():
            _send(worker, signal.SIGKILL)

    return Fault("kill -9 of every worker", kill, deaths=1)


def terminate_worker(site: Site, rng: random.Random) -> Fault:
    """Sometimes twice: the second asks for haste."""
    times = rng.choice((1, 1, 2))

    def terminate() -> None:
        worker = rng.choice(site.workers() or [None])
        for _ in range(times):
            _send(worker, signal.SIGTERM)

    return Fault("SIGTERM under load", terminate)


def freeze_worker(site: Site, rng: random.Random) -> Fault:
    """Past the lease: others run its prompts, and it wakes up believing that they are its own."""
    frozen: list[psutil.Process] = []

    def stop() -> None:
        if workers := site.workers():
            frozen.append(rng.choice(workers))
            _send(frozen[0], signal.SIGSTOP)

    def go_on() -> None:
        for worker in frozen:
            _send(worker, signal.SIGCONT)

    return Fault("SIGSTOP past the lease", stop, go_on, (2.2, 4.5), deaths=1)


def kill_supervisor(site: Site, rng: random.Random) -> Fault:  # noqa: ARG001 (made alike)
    """Its processes drain by themselves; then a new one starts others."""
    orphans: list[psutil.Process] = []

    def kill() -> None:
        assert site.fleet is not None
        orphans.extend(site.workers())
        site.orphans += orphans
        site.fleet.kill()
        site.fleet.wait()

    def start() -> None:
        for orphan in orphans:
            _send(orphan, signal.SIGCONT)  # another fault may have stopped it
        for orphan in psutil.wait_procs(orphans, 20)[1]:
            raise AssertionError(f"{orphan} outlived its supervisor")
        _bring_up(site)
        site.start_fleet()

    return Fault("kill -9 of the supervisor", kill, start, (0.1, 0.5))


def kill_reapers(site: Site, rng: random.Random) -> Fault:
    """Every reaper's thread ends; then one process dies and nobody sees it, until processes are replaced."""
    by_hand = rng.random() < 0.5

    def kill() -> None:
        triggers.pull(site.folder, triggers.REAPER_DIES, len(site.workers()))
        _signal_one(site, rng, signal.SIGKILL)

    def replace() -> None:
        triggers.forget(site.folder)
        if by_hand:
            _bring_up(site)
            subprocess.run(
                [sys.executable, "-m", "producer.cli", "reap"],
                env=site.environment,
                check=True,
                capture_output=True,
            )
        for worker in site.workers():
            _send(worker, signal.SIGKILL)

    return Fault("reapers killed", kill, replace, (1.0, 3.0), deaths=2)


def kill_broker(site: Site, rng: random.Random) -> Fault:  # noqa: ARG001 (made alike)
    return Fault("kill -9 of Redis", site.broker.kill, site.broker.start, (0.0, 3.0))


def flush_broker(site: Site, rng: random.Random) -> Fault:  # noqa: ARG001 (made alike)
    def flush() -> None:
        with suppress(redis.exceptions.ConnectionError):
            site.broker.client.flushall()

    return Fault("FLUSHALL", flush)


def silence(site: Site, rng: random.Random) -> Fault:  # noqa: ARG001 (made alike)
    assert site.proxy is not None
    return Fault("silent connection drop", site.proxy.go_silent)


def take_database_away(site: Site, rng: random.Random) -> Fault:
    if site.lock is not None:
        return Fault("write lock held", site.lock.take, site.lock.give_back, (0.5, 4.0))
    assert site.postgres is not None
    server, crash = site.postgres, rng.random() < 0.5
    name = "PostgreSQL crashes" if crash else "PostgreSQL stops"

    def come_back() -> None:
        server.start()
        site.db.dispose()  # ours, too: a connection used a moment ago is trusted, and died with the server

    return Fault(name, lambda: server.stop(crash), come_back, (0.5, 4.0))


def exhaust_memory(site: Site, rng: random.Random) -> Fault:
    times = rng.randint(1, 2)
    return Fault("out of memory", lambda: triggers.pull(site.folder, triggers.OUT_OF_MEMORY, times))


def repeat_bells(site: Site, rng: random.Random) -> Fault:
    """Far more than the window, and some of them twice."""
    count = rng.randint(20, 100)

    def repeat() -> None:
        with suppress(redis.exceptions.ConnectionError, Exception):
            site.ring(count, window=10_000)
            for queue in site.broker.queues():
                for message in site.broker.client.lrange(queue, 0, count // 2):
                    site.broker.client.lpush(queue, message)

    return Fault("bells repeated by hand", repeat)


def lose_bells(site: Site, rng: random.Random) -> Fault:  # noqa: ARG001 (made alike)
    def lose() -> None:
        with suppress(redis.exceptions.ConnectionError):
            for queue in site.broker.queues():
                site.broker.client.delete(queue)

    return Fault("bells lost by hand", lose)


COMMON = (
    kill_worker,
    kill_worker,
    kill_worker,
    kill_all_workers,
    terminate_worker,
    freeze_worker,
    kill_supervisor,
    kill_reapers,
    kill_broker,
    flush_broker,
    take_database_away,
    take_database_away,
    exhaust_memory,
    repeat_bells,
    lose_bells,
)


def _bring_up(site: Site) -> None:
    """A first start, and a command by hand, need their servers."""
    site.broker.start()
    if site.postgres is not None:
        site.postgres.start()
    if site.lock is not None:
        site.lock.give_back()


def _signal_one(site: Site, rng: random.Random, number: signal.Signals) -> None:
    _send(rng.choice(site.workers() or [None]), number)


def _send(process: psutil.Process | None, number: signal.Signals) -> None:
    if process is not None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(process.pid, number)
