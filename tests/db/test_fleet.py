"""Who is alive, and which pairs they serve."""

import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy import Engine, update

from db import actions, fleet
from db.clock import now
from db.connect import reading, writing
from db.errors import PairConflict
from db.queue import finish_batches
from db.tables import Worker, WorkerState
from tests.db.given import PAIR, submitted, worker


def live(database: Engine, pair: str | None = None) -> list[str]:
    with reading(database) as conn:
        return [row.id for row in fleet.live_workers(conn, pair)]


def test_a_worker_is_live_from_its_start_until_it_stops(database: Engine) -> None:
    worker(database, "one")
    worker(database, "two", pair="another")
    assert live(database) == ["one", "two"]
    assert live(database, PAIR) == ["one"]
    with writing(database) as conn:
        fleet.stop_worker(conn, "one")
    assert live(database) == ["two"]


def test_a_worker_that_went_silent_is_not_live(database: Engine) -> None:
    worker(database, "one")
    with writing(database) as conn:
        silent = now(conn) - timedelta(seconds=fleet.LIVE_SECONDS + 1)
        conn.execute(update(Worker).values(heartbeat_at=silent))
    assert live(database) == []
    with writing(database) as conn:
        fleet.heartbeat(conn, "one", WorkerState.DRAINING, {"rows_in_flight": 3})
    assert live(database) == ["one"]
    with reading(database) as conn:
        [row] = fleet.live_workers(conn)
    assert (row.state, row.activity) == ("draining", {"rows_in_flight": 3})
    assert row.started_at <= row.heartbeat_at


def register(database: Engine, fingerprint: str) -> None:
    with writing(database) as conn:
        fleet.register_pair(conn, PAIR, fingerprint, {"gamma": 5}, {"temperature": 0.2}, 2048)


def test_a_pair_is_known_as_its_workers_resolved_it(database: Engine) -> None:
    register(database, "f00d")
    register(database, "f00d")
    with reading(database) as conn:
        pair = fleet.get_pair(conn, PAIR)
        assert fleet.list_pairs(conn) == [pair]
        assert fleet.get_pair(conn, "unheard of") is None
    assert pair is not None
    assert (pair.fingerprint, pair.config, pair.context_limit) == ("f00d", {"gamma": 5}, 2048)
    assert pair.generation_defaults == {"temperature": 0.2}


def test_workers_that_start_at_the_same_moment_know_the_pair_by_one_row(database: Engine) -> None:
    """The second looks while the first has not committed yet."""
    with writing(database) as conn:
        fleet.register_pair(conn, PAIR, "f00d", {"gamma": 5}, {}, 2048)
        second = threading.Thread(target=register, args=(database, "f00d"))
        second.start()
        time.sleep(0.2)  # until it waits; should it come later, the test is merely easier
    second.join(30)
    with reading(database) as conn:
        assert [pair.generation_defaults for pair in fleet.list_pairs(conn)] == [{"temperature": 0.2}]


def test_a_name_that_a_live_worker_serves_otherwise_is_refused_with_both_fingerprints(
    database: Engine,
) -> None:
    register(database, "f00d")
    worker(database)
    register(database, "f00d")

    with pytest.raises(PairConflict, match=r"fingerprint beef, but a worker on alpha .* fingerprint f00d"):
        register(database, "beef")

    with writing(database) as conn:
        fleet.stop_worker(conn, "worker-1")
    register(database, "beef")  # nobody serves the old one any more
    with reading(database) as conn:
        pair = fleet.get_pair(conn, PAIR)
    assert pair is not None
    assert pair.fingerprint == "beef"


def test_of_two_that_start_at_the_same_moment_the_second_gives_way(database: Engine) -> None:
    worker(database, "first", pair_fingerprint="f00d")
    worker(database, "second", pair_fingerprint="beef")

    with pytest.raises(PairConflict, match="beef"), writing(database) as conn:
        fleet.register_pair(conn, PAIR, "beef", {}, {}, 2048, "second")
    with writing(database) as conn:
        fleet.register_pair(conn, PAIR, "f00d", {}, {}, 2048, "first")


def test_whoever_serves_already_stays_however_late_it_started(database: Engine) -> None:
    """The first one was silent for so long while it loaded that nobody knew of it."""
    worker(database, "first", pair_fingerprint="f00d")
    worker(database, "second", pair_fingerprint="beef", state=WorkerState.READY)

    with pytest.raises(PairConflict, match="f00d"), writing(database) as conn:
        fleet.register_pair(conn, PAIR, "f00d", {}, {}, 2048, "first")


def test_the_eldest_is_the_first_that_claims(database: Engine) -> None:
    worker(database, "draining", state=WorkerState.DRAINING)
    worker(database, "first", state=WorkerState.READY)
    worker(database, "second", state=WorkerState.READY)
    with reading(database) as conn:
        eldest = [name for name in ("draining", "first", "second") if fleet.is_eldest(conn, name, PAIR)]
    assert eldest == ["first"]


def test_a_pair_is_not_redefined_under_a_batch_that_has_not_ended(database: Engine) -> None:
    batch_id = submitted(database, "a", pair_fingerprint="f00d")
    register(database, "f00d")
    with pytest.raises(PairConflict, match=f"(?s)beef.*{batch_id}.*f00d.*producer cancel"):
        register(database, "beef")
    with writing(database) as conn:
        actions.cancel(conn, batch_id)
        actions.cancel_prompts(conn, batch_id)
        finish_batches(conn)
    register(database, "beef")
