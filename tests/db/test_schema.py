"""Migrations bring an empty database to what the models say, on both dialects."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from db import batches, fleet, schema
from db.connect import connect, reading, writing
from db.counts import counts_by_status
from db.errors import SchemaMismatch
from db.results import SampleRow
from db.tables import Base, Batch, Pair, Worker
from tests.db.given import answered, claimed, submitted, worker


def test_the_migrated_tables_are_the_models(database: Engine) -> None:
    with reading(database) as conn:
        assert compare_metadata(MigrationContext.configure(conn), Base.metadata) == []


def test_the_version_checked_is_the_last_migration() -> None:
    assert ScriptDirectory(Path(schema.__file__).parent / "migrations").get_current_head() == schema.HEAD


def test_an_upgrade_repeated_changes_nothing(database: Engine) -> None:
    batch_id = submitted(database, "a")
    schema.upgrade(database)
    schema.check(database)
    with reading(database) as conn:
        assert batches.get(conn, batch_id).id == batch_id


@pytest.mark.parametrize("fixture", ["sqlite_url", "postgres_url"])
def test_two_who_upgrade_at_once_both_succeed(fixture: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(fixture)

    def upgrade(_: int) -> None:
        engine = connect(url)
        schema.upgrade(engine)
        schema.check(engine)
        engine.dispose()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(upgrade, range(2))) == [None, None]


def test_an_empty_database_is_refused_with_the_command(sqlite_url: str) -> None:
    engine = connect(sqlite_url)
    with pytest.raises(SchemaMismatch, match=r"has no Specmill tables\. Create them: producer db upgrade"):
        schema.check(engine)
    engine.dispose()


def test_an_older_database_is_refused_with_the_command(database: Engine) -> None:
    with writing(database) as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    with pytest.raises(SchemaMismatch, match=r"at version 0000, this Specmill needs .* producer db upgrade"):
        schema.check(database)


def test_a_newer_database_is_refused_and_left_as_it_is(database: Engine) -> None:
    with writing(database) as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for refused in (schema.check, schema.upgrade):
        with pytest.raises(SchemaMismatch, match=r"at version 9999, newer than this .* Upgrade specmill"):
            refused(database)


def test_the_view_counts_a_batch_by_status(database: Engine) -> None:
    worker(database)
    batch_id = submitted(database, "a", "b", "c")
    empty = submitted(database)
    answered(database, claimed(database, limit=2)[:1])
    with reading(database) as conn:
        rows = {row.batch_id: row for row in conn.execute(text("SELECT * FROM batch_counts"))}
        counts = counts_by_status(conn, [batch_id])[batch_id]
    row = rows[batch_id]
    assert (row.total, row.pending, row.running, row.succeeded) == (3, 1, 1, 1)
    assert (row.failed, row.cancelled, row.expired) == (0, 0, 0)
    assert all(counts[status] == getattr(row, status) for status in counts)
    assert rows[empty].total == 0


def test_row_classes_name_the_columns_of_their_tables() -> None:
    for table, row in ((Batch, batches.BatchRow), (Worker, fleet.WorkerRow), (Pair, fleet.PairRow)):
        assert set(row.__slots__) == set(table.__table__.columns.keys())
    assert set(SampleRow.__slots__) == set(Base.metadata.tables["samples"].columns.keys()) - {
        "id",
        "prompt_id",
    }
