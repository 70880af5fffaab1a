"""Results in order of submission, in pages, while others write."""

import pytest
from sqlalchemy import Connection, Engine, text

from db import queue, results
from db.connect import reading, writing
from db.queue import Failed, Success
from tests.db.given import answered, claimed, sample, submitted, worker


def test_a_row_has_the_prompt_and_its_samples_in_order(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "a", n=2)
    [prompt] = claimed(database)
    with writing(database) as conn:
        unordered = [sample(sample_index=1, text="second"), sample(sample_index=0, text="first")]
        queue.complete(conn, "worker-1", [Success(prompt.lease, "as seen", unordered)], [])

    [row] = results.results(database, batch_id)

    assert (row.custom_id, row.text, row.messages, row.status) == ("a", "Say a.", None, "succeeded")
    assert (row.prompt_id, row.batch_id, row.position, row.n) == (prompt.prompt_id, batch_id, 0, 2)
    assert row.rendered == "as seen"
    assert [sample.text for sample in row.samples] == ["first", "second"]
    assert row.samples[0].mean_acceptance_length == 2.5
    with reading(database) as conn:
        assert results.find_prompt(conn, batch_id, "a") == row
        assert results.find_prompt(conn, batch_id, "b") is None


def test_a_prompt_without_result_has_its_status_and_reason(database: Engine) -> None:
    batch_id = submitted(database, "failed", "pending")
    [prompt] = claimed(database, limit=1)
    with writing(database) as conn:
        queue.complete(conn, "worker-1", [], [Failed(prompt.lease, "bad", "no")])
    failed, pending = results.results(database, batch_id)
    assert (failed.status, failed.error_code, failed.error_message, failed.samples) == (
        "failed",
        "bad",
        "no",
        [],
    )
    assert (pending.status, pending.error_code, pending.samples) == ("pending", None, [])


def test_every_prompt_once_over_page_ends(database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PAGE", 5)
    for count in (0, 4, 5, 6, 10):
        names = [f"{count}-{number}" for number in range(count)]
        batch_id = submitted(database, *names)
        assert [row.custom_id for row in results.results(database, batch_id)] == names


def snapshots_held(conn: Connection) -> int:
    """Transactions that stay open: on SQLite, whether one holds up the checkpoint of the write-ahead log."""
    if conn.dialect.name == "sqlite":
        return conn.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    idle = text("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
    return conn.execute(idle).scalar_one()


def test_an_export_sees_what_is_written_meanwhile_and_holds_nobody_up(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAGE", 10)
    worker(database)
    batch_id = submitted(database, *(f"p{number}" for number in range(30)))
    seen: list[str] = []
    for row in results.results(database, batch_id):
        seen.append(row.status)
        if len(seen) == 5:  # in the midst of the first page
            answered(database, claimed(database, limit=30))
            with database.connect() as conn:
                assert snapshots_held(conn) == 0
    assert seen == ["pending"] * 10 + ["succeeded"] * 20
