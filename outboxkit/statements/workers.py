"""The workers that are there: a row for each relay, consumer and retention."""

from functools import cache
from typing import Any

from sqlalchemy import Delete, Insert, Select, bindparam, delete, select

from outboxkit.statements.dialects import insert_into, interval, statement_time
from outboxkit.tables import worker

_CHANGING = ("skew", "places", "taken", "rate", "rests", "sessions", "queues")
"""The columns that a worker writes each time; the others stay as they were at its start."""


@cache
def write_worker(dialect: str) -> Insert:
    """Say that a worker is there. Parameters: each column but the times. Index: the primary key. Locks: the row."""
    now = statement_time(dialect)
    row: dict[str, Any] = {
        column.name: bindparam(column.name, type_=column.type)
        for column in worker.columns
        if column.name not in ("started_at", "seen_at")
    }
    changed = {name: row[name] for name in _CHANGING} | {"seen_at": now}
    upsert: Insert = (
        insert_into(dialect, worker)
        .values(row | {"started_at": now, "seen_at": now})
        .on_conflict_do_update(index_elements=list(worker.primary_key), set_=changed)
    )
    return upsert


def delete_worker() -> Delete:
    """Delete the row of a worker that ends. Parameters: of. Index: the primary key. Locks: the row."""
    return delete(worker).where(worker.c.id == bindparam("of"))


def delete_silent(dialect: str) -> Delete:
    """Delete the rows of workers that were not seen for so long. Parameters: ago (negative).

    Index: none, the table has a row for each worker. Locks: the rows that it deletes.
    """
    return delete(worker).where(worker.c.seen_at < statement_time(dialect, interval("ago")))


def all_workers() -> Select[Any]:
    """All workers. Index: none, the table has a row for each worker. Locks: none."""
    return select(worker).order_by(worker.c.kind.desc(), worker.c.name, worker.c.started_at, worker.c.id)
