"""Moments that a table may hold and Python cannot read."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, case, literal

from outboxkit.tables import UtcDateTime

FIRST_MOMENT, LAST_MOMENT = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Earlier and later ones cannot be read in Python in every time zone; PostgreSQL has a year 20000, and infinity."""


def readable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column of a dead letter so that one that holds an absurd moment can be read, and all others beside it."""
    if not isinstance(column.type, UtcDateTime):
        return column
    first, last = literal(FIRST_MOMENT, UtcDateTime), literal(LAST_MOMENT, UtcDateTime)
    return case((column < first, first), (column > last, last), else_=column).label(column.key)
