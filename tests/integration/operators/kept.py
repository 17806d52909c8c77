"""Kept published messages, for tests: rows, and where PostgreSQL has put them."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, insert, text

from outboxkit import statements, tables
from outboxkit.statements.partitions import PUBLISHED, PartitionedTable

DAY = timedelta(days=1)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAYS = [NOW.date() + number * DAY for number in range(8)]


def row(position: int, at: datetime, **more: object) -> dict[str, Any]:
    known = {"published_at": at, "position": position, "message_id": f"m-{position}", "type": "OrderConfirmed"}
    return known | {"payload": b"{}", "headers": b"{}", "content_type": "application/json"} | more


def keep(engine: Engine, *rows: dict[str, Any]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(tables.published), list(rows))


def places(engine: Engine) -> dict[int, str]:
    """The table that each kept row is in, by its position."""
    with engine.connect() as connection:
        found = connection.execute(text("SELECT position, tableoid::regclass::text FROM outboxkit_published"))
        return {position: name.strip('"') for position, name in found}


def days(engine: Engine, partitioned: PartitionedTable = PUBLISHED) -> list[date]:
    with engine.connect() as connection:
        found = connection.execute(statements.partitions.attached(partitioned)).all()
    return sorted(day for day in (partitioned.day_of(one[3]) for one in found) if day is not None)
