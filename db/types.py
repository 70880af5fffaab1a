"""Column types shared by the tables."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

# SQLite only makes an INTEGER primary key an alias of its rowid; PostgreSQL wants 64 bits.
BigIntegerKey = BigInteger().with_variant(Integer(), "sqlite")

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

# JSONB reorders keys; what a chat template renders must stay as it was given.
JsonAsGiven = JSON(none_as_null=True)


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC time. SQLite stores text without a zone; both dialects hand back aware values."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: times in the database are UTC and must say so")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 (the base class names it)
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
