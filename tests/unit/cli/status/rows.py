"""Rows in every state, for any kind of database."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert

from outboxkit import tables

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
ENVELOPE = {"payload": b"{}", "headers": b"{}", "content_type": "application/json"}


def add_rows(connection: Connection, count: int = 1, **columns: Any) -> None:
    row = {"message_id": "m", "type": "OrderConfirmed", "created_at": NOW} | columns | ENVELOPE
    connection.execute(insert(tables.outbox), [row] * count)


def add_dead(connection: Connection, count: int = 1, **columns: Any) -> None:
    row = {"side": "outbox", "reason": "refused", "attempts": 10} | columns | ENVELOPE
    connection.execute(insert(tables.dead_letter), [row] * count)


def fill(connection: Connection) -> None:
    """2 ready rows, 1 delayed, 2 held (one failed), 3 parked behind two keys; and some in every other table."""
    add_rows(connection, created_at=NOW - 2 * HOUR)
    add_rows(connection, created_at=None, type="StockChanged")
    add_rows(connection, created_at=NOW + 3 * HOUR, due_at=NOW + 3 * HOUR)
    add_rows(connection, key="a", held=True, attempts=3, due_at=NOW + HOUR)
    add_rows(connection, key="a", held=True, due_at=NOW + HOUR)
    add_rows(connection, 2, key="b", held=True, due_at=tables.PARKED, created_at=NOW - 9 * HOUR)
    add_rows(connection, key="c", held=True, due_at=tables.PARKED)
    for key in ("b", "c", "d"):
        add_dead(connection, key=key, parked=True)
    add_dead(connection, 2, side="inbox", reason="rejected")
    add_dead(connection, resolution="replayed", resolved_at=NOW, resolved_by="ann")
    for handler, message_id in (("A", "1"), ("A", "2"), ("B", "1")):
        connection.execute(insert(tables.inbox).values(handler=handler, message_id=message_id, type="T"))
    for number, (state, over) in enumerate((("started", True), ("started", True), ("started", False), ("done", True))):
        until = NOW - HOUR if over else NOW + HOUR
        row = {"key": f"e{number}", "state": state, "token": "t", "started_at": NOW - 2 * HOUR, "locked_until": until}
        row["used_at"] = NOW
        connection.execute(insert(tables.effect).values(row))
    for number in range(4):
        row = {"scope": "POST /orders", "principal": "ann", "key": f"k{number}", "fingerprint": b"", "state": "done"}
        row |= {"token": "t", "created_at": NOW, "expires_at": NOW + HOUR}
        connection.execute(insert(tables.idempotency).values(row))
    kept = {"published_at": NOW - 48 * HOUR, "position": 1, "message_id": "m", "type": "T"}
    connection.execute(insert(tables.published), [kept | ENVELOPE])
