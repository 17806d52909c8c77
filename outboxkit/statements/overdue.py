"""Statements that look for what should be gone: rows that prune should have deleted, and open dead letters."""

from typing import Any

from sqlalchemy import Select, column, func, literal_column, select, table

from outboxkit.statements.dialects import unplaced_rows
from outboxkit.tables import UtcDateTime, dead_letter, effect, idempotency, inbox


def oldest_unplaced(dialect: str) -> Select[Any]:
    """When the oldest inbox row that is in no day's partition was processed.

    Index: outboxkit_inbox_processed on PostgreSQL; none on SQLite. Locks: none.
    """
    rows = table(unplaced_rows(dialect, inbox), column("processed_at", UtcDateTime))
    return select(func.min(rows.c.processed_at))


def oldest_request() -> Select[Any]:
    """When the first idempotency key expires, or expired. Index: outboxkit_idempotency_expires. Locks: none."""
    return select(func.min(idempotency.c.expires_at))


def oldest_effect() -> Select[Any]:
    """When the oldest effect was started. Index: outboxkit_effect_started. Locks: none."""
    return select(func.min(effect.c.started_at))


def first_dead_letter() -> Select[Any]:
    """When the dead letter with the lowest id died, and whether it parks a key. Index: the primary key. Locks: none."""
    return select(dead_letter.c.dead_at, dead_letter.c.parked).order_by(dead_letter.c.id).limit(literal_column("1"))


def oldest_dead() -> Select[Any]:
    """The open dead letter with the lowest id. Index: outboxkit_dead_letter_open. Locks: none."""
    columns = (dead_letter.c.id, dead_letter.c.dead_at, dead_letter.c.type, dead_letter.c.error)
    is_open = dead_letter.c.resolution.is_(None)
    return select(*columns).where(is_open).order_by(dead_letter.c.id).limit(literal_column("1"))
