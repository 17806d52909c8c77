"""An INSERT that says what becomes of a conflict: each dialect has its own, with the same methods."""

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(dialect: str, table: Table) -> Any:
    """The dialect's `insert(table)`, which knows ON CONFLICT."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
