"""Dead letters, and what waits behind them, as a relay leaves them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, insert, select

from outboxkit import statements, tables

LONG_AGO = datetime.now(UTC) - timedelta(hours=3)
ENVELOPE = {
    "type": "OrderConfirmed",
    "payload": b'{"order_id":7}',
    "headers": b"{}",
    "content_type": "application/json",
    "version": 1,
}


def dead(position: int | None, **more: Any) -> dict[str, Any]:
    """A dead letter of the outbox, which has parked its key where it has one."""
    key = more.get("key")
    known = ENVELOPE | {"side": "outbox", "position": position, "message_id": f"m-{position}", "key": key}
    known |= {"reason": "rejected", "error": "rejected: no", "attempts": 10, "parked": key is not None}
    known |= {"dead_at": LONG_AGO, "queue": None, "handler": None, "discard_unroutable": False}
    return known | {"destination": "default", "reply": None} | more


def buried(message_id: str | None = "m-1", **more: Any) -> dict[str, Any]:
    """A dead letter of the inbox, as a consumer gives it: all of `statements.dead.BURIED`."""
    known = dict.fromkeys(statements.dead.BURIED) | ENVELOPE
    known |= {"side": "inbox", "queue": "billing", "handler": "SendReceipt", "message_id": message_id}
    return known | {"reason": "failed", "error": "ValueError: no", "attempts": 10} | more


def waiting(position: int, key: str, **more: Any) -> dict[str, Any]:
    """A row of the outbox that waits for somebody's decision."""
    return (
        ENVELOPE
        | {"position": position, "message_id": f"m-{position}", "key": key, "held": True}
        | ({"due_at": tables.PARKED} | more)
    )


def fill(engine: Engine, letters: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> None:
    with engine.begin() as connection:
        if letters:
            connection.execute(insert(tables.dead_letter), letters)
        if rows:
            connection.execute(insert(tables.outbox), rows)


def outbox_rows(engine: Engine) -> dict[int, Any]:
    with engine.connect() as connection:
        return {
            row.position: row for row in connection.execute(select(tables.outbox).order_by(tables.outbox.c.position))
        }


def letters(engine: Engine) -> dict[int, Any]:
    with engine.connect() as connection:
        return {row.id: row for row in connection.execute(select(tables.dead_letter).order_by(tables.dead_letter.c.id))}


def still_parked(engine: Engine) -> set[int]:
    return {position for position, row in outbox_rows(engine).items() if row.due_at == tables.PARKED}
