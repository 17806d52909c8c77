"""Entries for tests, with what a test does not care about filled in."""

from datetime import UTC, datetime, timedelta
from typing import Any

from outboxkit.operators.trace.entries import Archive, Identity, InboxEntry, Kept, Letter, Registered, Waiting

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DATABASE = "postgresql://shop"


def identity(id_: str = "m", **more: Any) -> Identity:
    return Identity(**{"message_id": id_, "type": "OrderConfirmed", "key": "order-1", "destination": "default"} | more)


def waiting(id_: str = "m", position: int = 7, *, message: Identity | None = None, **more: Any) -> Waiting:
    known = {"due_at": None, "held": False, "attempts": 0, "last_error": None}
    known |= {"first_failed_at": None, "expires_at": None}
    return Waiting(DATABASE, message or identity(id_), position, **known | more)


def kept(id_: str = "m", position: int = 7, **more: Any) -> Kept:
    return Kept(DATABASE, identity(id_, **more), position, NOW)


def letter(id_: str = "m", number: int = 3, **more: Any) -> Letter:
    known = {"side": "inbox", "handler": "H", "reason": "failed", "error": "ValueError: no", "attempts": 10}
    return Letter(DATABASE, identity(id_, queue="q"), number, **known | {"dead_at": NOW + 5 * SECOND} | more)


def handled(id_: str = "m", handler: str = "H", **more: Any) -> InboxEntry:
    return InboxEntry(DATABASE, id_, handler, "OrderConfirmed", **{"processed_at": NOW + SECOND, "attempts": 1} | more)


def registered(handler: str = "H", queue: str = "q", **more: Any) -> Registered:
    return Registered(handler, queue, **{"types": ("OrderConfirmed",), "last_seen": NOW} | more)


def archive(*entries: Any, database: str = DATABASE, **more: Any) -> Archive:
    made = Archive(database, NOW, **more)
    for entry in entries:
        match entry:
            case Waiting():
                made.waiting[entry.position] = entry
            case Kept():
                made.kept[entry.published_at, entry.position] = entry
            case Letter():
                made.letters[entry.number] = entry
            case InboxEntry():
                made.handled[entry.handler, entry.message_id] = entry
            case _:
                made.crashes[entry.queue, entry.message_id] = entry
    return made
