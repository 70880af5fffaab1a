"""Rows read as dataclasses, so that no caller depends on SQLAlchemy."""

from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement

from db.tables import Base


def columns(table: type[Base], row_class: type[Any]) -> list[ColumnElement[Any]]:
    """The columns that `row_class` has as fields, in their order: select them, then `row_class(*row)`."""
    return [table.__table__.c[field.name] for field in fields(row_class)]
