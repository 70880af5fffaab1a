"""Never alive and idle: what stands still is noticed, whatever it is, and ends the process."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from db.connect import connect
from tests.worker.bench import Bench
from tests.worker.queued import submit
from tests.worker.waiting import until
from worker.errors import tells_of_lost_device
from worker.vitals import Vitals
from worker.watchdog import Patience, Watchdog, work_waits

WELL = Vitals(True, 5, True, 7, is_stepping=True, claims=3, is_hungry=False)
PATIENCE = Patience(interval=1, dead=2, turn=3, step=4, claim=5)


class Scene:
    """A worker whose signs of life the test sets."""

    def __init__(self) -> None:
        self.seen = WELL
        self.work = False
        self.dog = Watchdog(lambda: self.seen, lambda: self.work, lambda _reason: None, PATIENCE)

    def alive(self) -> Vitals:
        """Everything moved on."""
        self.seen = replace(
            self.seen, turns=self.seen.turns + 1, steps=self.seen.steps + 1, claims=self.seen.claims + 1
        )
        return self.seen

    def looks_until_alarm(self, **still: object) -> tuple[int, str]:
        for look in range(1, 20):
            self.seen = replace(self.alive(), **still)
            if reason := self.dog.look():
                return look, reason
        return 0, ""


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_worker_that_moves_is_left_alone(scene: Scene) -> None:
    scene.work = True
    assert scene.looks_until_alarm(is_hungry=True) == (0, "")


def test_a_dead_engine_is_noticed(scene: Scene) -> None:
    assert scene.looks_until_alarm(engine_alive=False) == (
        3,
        "the engine's thread ended and the process did not",
    )


def test_a_dead_runner_is_noticed(scene: Scene) -> None:
    assert "the runner's thread" in scene.looks_until_alarm(runner_alive=False, turns=9)[1]


def test_a_runner_that_hangs_is_noticed(scene: Scene) -> None:
    assert scene.looks_until_alarm(turns=9) == (4, "the runner has not moved for 3 s")


def test_an_engine_stuck_in_a_step_is_noticed(scene: Scene) -> None:
    assert scene.looks_until_alarm(steps=9) == (5, "the engine is stuck in one step for 4 s")


def test_an_engine_that_waits_for_work_is_not_stuck(scene: Scene) -> None:
    assert scene.looks_until_alarm(steps=9, is_stepping=False) == (0, "")


def test_work_and_room_but_no_bell_is_noticed(scene: Scene) -> None:
    """What a Celery worker that went catatonic looks like from here."""
    scene.work = True
    look, reason = scene.looks_until_alarm(claims=9, is_hungry=True)
    assert (look, reason) == (6, "prompts wait and there is room for them, but for 5 s no bell was heard")


@pytest.mark.parametrize(("work", "hungry"), [(False, True), (True, False)])
def test_without_work_or_room_nobody_need_ring(scene: Scene, work: bool, hungry: bool) -> None:
    scene.work = work
    assert scene.looks_until_alarm(claims=9, is_hungry=hungry) == (0, "")


def test_an_interruption_begins_the_count_anew(scene: Scene) -> None:
    scene.work = True
    for _ in range(10):
        for _ in range(4):
            scene.seen = replace(scene.alive(), claims=9, is_hungry=True)
            assert scene.dog.look() is None
        scene.alive()
        assert scene.dog.look() is None


# On a real runner

QUICK = Patience(interval=0.05, dead=0.2, turn=60, step=0.3, claim=0.3)


@pytest.fixture
def alarms(bench: Bench) -> Iterator[list[str]]:
    reasons: list[str] = []
    dog = Watchdog(bench.runner.vitals, lambda: work_waits(bench.db, "tiny"), reasons.append, QUICK)
    dog.start()
    yield reasons
    dog.stop()


def test_a_step_that_does_not_end_raises_the_alarm_once(bench: Bench, alarms: list[str]) -> None:
    bench.engine.goes_on.clear()
    submit(bench.db, [{}])
    bench.runner.hear()
    until(lambda: alarms, "the alarm is raised")
    assert "stuck in one step" in alarms[0]
    bench.engine.goes_on.set()


def test_prompts_that_no_bell_rings_for_raise_the_alarm(bench: Bench, alarms: list[str]) -> None:
    submit(bench.db, [{}])
    until(lambda: alarms, "the alarm is raised")
    assert "no bell was heard" in alarms[0]


def test_a_worker_without_work_is_at_rest(bench: Bench, alarms: list[str]) -> None:
    looked = bench.runner.vitals().turns
    until(lambda: bench.runner.vitals().turns > looked + 3, "it has beaten a few times")
    assert alarms == []


def test_no_work_waits_in_a_database_that_is_away() -> None:
    away: Engine = connect("postgresql://nobody@127.0.0.1:1/nowhere")
    assert not work_waits(away, "tiny")


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    ],
)
def test_what_a_poisoned_context_says_is_known(message: str) -> None:
    assert tells_of_lost_device(message)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: out of memory",
        "index 5 is out of bounds for dimension 0",
        "the row could not be processed: ValueError: CUDA",
    ],
)
def test_other_failures_are_not_taken_for_it(message: str) -> None:
    assert not tells_of_lost_device(message)
