"""Rows for tests, with what a test does not care about filled in."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from outboxkit.operators.trace import MessageTrace, TraceQuery
from outboxkit.operators.trace.message import assemble
from outboxkit.operators.trace.reading import DatabaseRows, Surroundings
from outboxkit.runtime.known_handlers import KnownHandler

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DATABASE = "postgresql://shop"


def _row(id_: str, more: dict[str, Any]) -> Any:
    message = {"message_id": id_, "type": "OrderConfirmed", "key": "order-1", "destination": "default", "queue": None}
    message |= {"correlation_id": None, "causation_id": None, "created_at": None, "headers": b"{}", "digest": "d"}
    return SimpleNamespace(**message | more)


def waiting(id_: str = "m", position: int = 7, **more: Any) -> Any:
    known = {"position": position, "due_at": None, "held": False, "attempts": 0, "last_error": None}
    return _row(id_, known | {"first_failed_at": None, "expires_at": None} | more)


def kept(id_: str = "m", position: int = 7, **more: Any) -> Any:
    return _row(id_, {"position": position, "published_at": NOW} | more)


def letter(id_: str = "m", number: int = 3, **more: Any) -> Any:
    known = {"id": number, "side": "inbox", "handler": "H", "reason": "failed", "error": "ValueError: no"}
    known |= {"attempts": 10, "dead_at": NOW + 5 * SECOND, "parked": False, "first_failed_at": None, "queue": "q"}
    return _row(id_, known | {"resolution": None, "resolved_at": None, "resolved_by": None} | more)


def handled(id_: str = "m", handler: str = "H", **more: Any) -> Any:
    known = {"type": "OrderConfirmed", "processed_at": NOW + SECOND, "attempts": 1}
    return SimpleNamespace(message_id=id_, handler=handler, **known | more)


def crashes(id_: str = "m", starts: int = 1, failures: int = 0, **more: Any) -> Any:
    known = {"queue": "q", "starts": starts, "failures": failures, "touched_at": NOW, "handler": None, "error": None}
    return SimpleNamespace(message_id=id_, **known | {"type": None, "key": None} | more)


def registered(handler: str = "H", queue: str = "q", **more: Any) -> KnownHandler:
    return KnownHandler(queue, handler, None, **{"types": ("OrderConfirmed",), "last_seen": NOW} | more)


def database(*rows: Any, name: str = DATABASE, around: Surroundings | None = None, **more: Any) -> DatabaseRows:
    made = DatabaseRows(name, NOW, **more)
    for row in rows:
        if hasattr(row, "published_at"):
            made.kept[row.published_at, row.position] = row
        elif hasattr(row, "dead_at"):
            made.letters[row.id] = row
        elif hasattr(row, "due_at"):
            made.waiting[row.position] = row
            made.around[row.position] = around or Surroundings()
        else:
            made.handled += [row] if hasattr(row, "processed_at") else []
            made.crashes |= {} if hasattr(row, "processed_at") else {(row.queue, row.message_id): row}
    return made


def traced(id_: str, *databases: DatabaseRows) -> MessageTrace:
    (message,) = assemble(TraceQuery(id_), databases).messages
    return message
