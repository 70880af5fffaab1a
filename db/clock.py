"""The database's clock: the only one that leases and deadlines are measured by."""

from datetime import UTC, datetime

from sqlalchemy import Connection


def now(conn: Connection) -> datetime:
    """The present time by the database, not by this host (which on SQLite are the same)."""
    if conn.dialect.name == "sqlite":
        value = conn.exec_driver_sql("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')").scalar_one()
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)
    value = conn.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    assert isinstance(value, datetime)
    return value.astimezone(UTC)
