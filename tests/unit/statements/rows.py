"""Rows of the outbox for tests of statements."""

from typing import Any

from sqlalchemy import Connection, insert, select

from outboxkit.tables import outbox


def put(connection: Connection, *rows: dict[str, Any]) -> None:
    """Insert rows, numbered from 1, each with what a row must have and with what is given."""
    for position, given in enumerate(rows, 1):
        needed = {"message_id": f"m-{position}", "type": "T", "payload": b"{}", "headers": b"{}"}
        connection.execute(insert(outbox), {**needed, "content_type": "application/json", **given})


def left(connection: Connection, *names: str) -> list[Any]:
    """These columns of the rows that are there, in position order; one value a row where it is one column."""
    found = connection.execute(select(*(outbox.c[name] for name in names)).order_by(outbox.c.position))
    return list(found.scalars() if len(names) == 1 else map(tuple, found))
