"""A worker that loads its model is there for others, for as long as that takes."""

from datetime import datetime

import pytest
from sqlalchemy import Engine, select

from db.connect import reading, writing
from db.tables import Worker
from tests.db import given
from tests.worker.waiting import until
from worker.starting import heard_of


def _heartbeat(database: Engine) -> datetime:
    with reading(database) as conn:
        return conn.execute(select(Worker.heartbeat_at)).scalar_one()


def test_loading_is_heard_of(database: Engine) -> None:
    worker_id = given.worker(database)
    with heard_of(database, worker_id, seconds=0.01):
        for _ in range(3):
            last = _heartbeat(database)
            until(lambda last=last: _heartbeat(database) > last, "another heartbeat")
    last = _heartbeat(database)
    with heard_of(database, worker_id, seconds=60):
        pass
    assert _heartbeat(database) == last


def test_a_database_that_is_away_stops_no_loading(database: Engine, caplog: pytest.LogCaptureFixture) -> None:
    worker_id = given.worker(database)
    with heard_of(database, worker_id, seconds=0.01):
        _run(database, "ALTER TABLE workers RENAME TO away")
        until(lambda: "loading goes on" in caplog.text, "it says so")
        _run(database, "ALTER TABLE away RENAME TO workers")
        last = _heartbeat(database)
        until(lambda: _heartbeat(database) > last, "it is heard of again")


def _run(database: Engine, statement: str) -> None:
    with writing(database) as conn:
        conn.exec_driver_sql(statement)
