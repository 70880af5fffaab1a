"""What is finished while the database is away is on disk, and handed in once: by this process or the next."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, update

from db import schema
from db.connect import connect, writing
from db.queue import Failed, Lease, Success
from db.tables import Prompt
from tests.worker.bench import Bench
from tests.worker.queued import Queued, submit
from tests.worker.waiting import until
from worker.spool import Result, Spool

SUCCESS = Result("batch_1", Success(Lease(7, 3), "<user>é", [{"text": "\ud800 half", "seed": 5}]))
FAILURE = Result("batch_1", Failed(Lease(8, 1), "prompt_too_long", "too long"))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path, "sqlite:///here")


def kept(spool: Spool) -> list[Result | None]:
    return [spool.read(path) for path in spool.files()]


def test_what_is_kept_is_read_back_as_it_was(spool: Spool) -> None:
    assert spool.files() == []
    assert spool.keep([SUCCESS, FAILURE])
    assert kept(spool) == [SUCCESS, FAILURE]
    spool.forget([Lease(7, 3), Lease(99, 1)])
    assert kept(spool) == [FAILURE]


def test_each_database_has_a_folder_of_its_own_that_nobody_else_reads(spool: Spool, tmp_path: Path) -> None:
    spool.keep([SUCCESS])
    assert Spool(tmp_path, "sqlite:///elsewhere").files() == []
    assert spool.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({"format": 999})])
def test_a_file_that_is_no_result_is_set_aside_and_named(
    spool: Spool, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    spool.keep([SUCCESS])
    (path,) = spool.files()
    path.write_text(content)
    assert kept(spool) == [None]
    assert spool.files() == []
    assert str(path) in caplog.text


def test_a_full_disk_is_said_once(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert not spool.keep([SUCCESS])
    assert not spool.keep([SUCCESS])
    assert spool.files() == [], "what may be torn is not there"
    (record,) = caplog.records
    assert "No space left on device" in record.message


# With a runner. Here, "away" is a SQLite file that another process keeps locked.


@pytest.fixture
def url(sqlite_url: str) -> str:
    schema.upgrade(connect(sqlite_url))
    return sqlite_url


@contextmanager
def away(url: str) -> Iterator[Connection]:
    with writing(connect(url)) as conn:
        yield conn


@pytest.fixture
def impatient(url: str) -> Engine:
    return connect(f"{url}?timeout=0.05")


def run_one(url: str, bench: Bench) -> Queued:
    """A prompt that is in the engine, and does not end yet."""
    bench.engine.held = {"question 0"}
    batch = submit(connect(url), [{}])
    bench.runner.hear()
    until(lambda: bench.engine.seen, "the prompt is in the engine")
    return batch


def test_results_outlive_an_outage(url: str, impatient: Engine, spool: Spool) -> None:
    bench = Bench(impatient, spool)
    batch = run_one(url, bench)
    with away(url):
        bench.engine.held.clear()
        until(spool.files, "the result is on the disk")
        later = bench.runner.hear()
    until(lambda: batch.statuses() == ["succeeded"], "it is stored")
    later.wait()
    assert spool.files() == []
    assert len(batch.samples()) == 1
    assert bench.death is None
    bench.close()


def test_results_outlive_the_process_and_the_next_one_hands_them_in(
    url: str, impatient: Engine, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(impatient, spool)
    batch = run_one(url, bench)
    with away(url):
        bench.runner.drain(grace=60)
        bench.engine.held.clear()
        until(spool.files, "the result is on the disk")
        bench.runner.drain(grace=0)
        assert bench.runner.join(30)
    assert "1 finished prompts wait in" in caplog.text
    assert batch.statuses() == ["running"]

    with caplog.at_level(logging.INFO):
        following = Bench(impatient, spool, "worker_2")
        until(lambda: batch.statuses() == ["succeeded"], "it hands it in")
        until(lambda: not spool.files(), "the file is gone")
        following.close()
    assert [sample.text for sample in batch.samples()] == ["answer to question 0, sample 0"]
    assert batch.batch.status == "completed"


def left_behind(url: str, spool: Spool, **changes: object) -> Queued:
    """A prompt that runs as its dead holder left it, whose result is in the spool."""
    batch = submit(connect(url), [{}])
    with writing(connect(url)) as conn:
        conn.execute(update(Prompt).values(status="running", attempt=1, owner="worker_0"))
    result = Result(batch.id, Failed(Lease(batch.prompts()[0].id, 1), "prompt_too_long", "too long"))
    spool.keep([Result(**vars(result) | changes)])
    return batch


def test_a_result_whose_prompt_went_on_without_it_is_dropped(
    url: str, impatient: Engine, spool: Spool
) -> None:
    batch = left_behind(url, spool)
    batch.take_away("p0")
    bench = Bench(impatient, spool)
    until(lambda: not spool.files(), "the file is gone")
    assert batch.statuses() == ["pending"]
    bench.close()


def test_a_result_from_another_database_at_the_same_place_is_dropped(
    url: str, impatient: Engine, spool: Spool
) -> None:
    """Ids and attempts begin again in a fresh database; batches' names do not."""
    batch = left_behind(url, spool, batch_id="batch_of_before")
    bench = Bench(impatient, spool)
    until(lambda: not spool.files(), "the file is gone")
    assert batch.statuses() == ["running"]
    bench.close()


def test_a_result_that_the_database_refuses_is_set_aside(
    url: str, impatient: Engine, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    batch = left_behind(url, spool)
    lease = Lease(batch.prompts()[0].id, 1)
    spool.keep([Result(batch.id, Success(lease, "", [{"text": ""}]))])
    bench = Bench(impatient, spool)
    until(lambda: not spool.files(), "it is set aside")
    assert len(list(spool.folder.glob("*.rejected"))) == 1
    assert "NOT NULL constraint failed" in caplog.text
    bench.runner.hear().wait()  # it serves
    bench.close()
