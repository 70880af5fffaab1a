"""Real worker processes, on an engine that answers from a table: what kills them, what goes away."""

import signal
from collections.abc import Iterator

import pytest

from db import fleet
from db.connect import reading
from tests.faults import table
from tests.faults.site import Site, run_site
from tests.worker.queued import Queued, submit, workers
from tests.worker.waiting import until


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with run_site(request.param, processes=1, answer=table.answer) as site:
        yield site


def ask(site: Site, texts: list[str]) -> Queued:
    with reading(site.db) as conn:
        pair = fleet.get_pair(conn, site.pair)
    assert pair is not None
    batch = submit(site.db, [{"text": text} for text in texts], pair.name, pair.fingerprint)
    site.ring(4)
    return batch


def bring_back(site: Site) -> None:
    assert site.postgres is not None
    site.postgres.start()
    site.db.dispose()  # the test's own connections are those of the server that went away


def assert_each_has_its_answer(batch: Queued) -> None:
    texts = {prompt.custom_id: prompt.text for prompt in batch.prompts() if prompt.status == "succeeded"}
    assert [(sample.custom_id, sample.text) for sample in batch.samples()] == [
        (custom_id, table.answer(text, 0)) for custom_id, text in texts.items()
    ]


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_a_prompt_that_kills_its_process_fails_and_none_of_its_neighbours(site: Site) -> None:
    batch = ask(site, [f"question {number}" if number != 5 else table.POISON for number in range(16)])
    until(lambda: batch.batch.status == "completed", "the batch has ended")
    assert batch.statuses() == ["succeeded"] * 5 + ["failed"] + ["succeeded"] * 10
    assert batch.prompts()[5].error_code == "poison"
    assert max(prompt.crashes for prompt in batch.prompts()) == 3
    assert len(workers(site.db)) == 4, "three died of it"
    assert_each_has_its_answer(batch)


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_a_database_that_stops_and_comes_back_is_survived(site: Site) -> None:
    """What is running meanwhile ends, waits on the disk, and is stored once."""
    assert site.postgres is not None
    batch = ask(site, [f"question {number}" for number in range(200)])
    until(lambda: "succeeded" in batch.statuses(), "it runs")
    site.postgres.stop(crash=False)
    spool = site.folder / "state" / "spool"
    until(lambda: list(spool.glob("*/*.json")), "results wait on the disk")
    bring_back(site)
    until(lambda: batch.batch.status == "completed", "the batch is complete")
    assert set(batch.statuses()) == {"succeeded"}
    assert_each_has_its_answer(batch)
    assert list(spool.glob("*/*")) == []
    assert len(workers(site.db)) == 1, "it was never restarted"
    said = site.log.read_text()
    assert said.count("No prompt is claimed until it is back") == 1, "said once"
    assert said.count("the database is back") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_a_worker_told_to_stop_without_its_database_leaves_its_results_to_the_next(site: Site) -> None:
    assert site.postgres is not None
    assert site.fleet is not None
    batch = ask(site, [f"question {number}" for number in range(200)])
    until(lambda: "succeeded" in batch.statuses(), "it runs")
    site.postgres.stop(crash=False)
    spool = site.folder / "state" / "spool"
    until(lambda: list(spool.glob("*/*.json")), "results wait on the disk")
    site.fleet.send_signal(signal.SIGTERM)
    site.fleet.send_signal(signal.SIGTERM)
    site.fleet.wait(60)
    left = len(list(spool.glob("*/*.json")))
    assert f"{left} finished prompts wait in" in site.log.read_text()

    bring_back(site)
    done = batch.statuses().count("succeeded")
    site.start_fleet()
    until(lambda: batch.statuses().count("succeeded") >= done + left, "they are handed in")
    until(lambda: batch.batch.status == "completed", "the batch is complete")
    assert_each_has_its_answer(batch)
    assert site.log.read_text().count("was stored") == left
    assert list(spool.glob("*/*")) == []
