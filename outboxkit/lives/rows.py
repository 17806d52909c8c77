"""Rows of the tables as entries of an archive. Pure."""

from typing import Any

from sqlalchemy import RowMapping

from outboxkit.headers import decode_headers
from outboxkit.lives.clue import Clue
from outboxkit.lives.entries import Archive, Crashes, Identity, InboxEntry, Kept, Letter, Waiting

_OF_WAITING = ("position", "due_at", "held", "attempts", "last_error", "first_failed_at", "expires_at")
_OF_LETTER = (
    *("side", "handler", "reason", "error", "attempts", "dead_at", "parked", "position", "first_failed_at"),
    *("resolution", "resolved_at", "resolved_by"),
)
_OF_HANDLED = ("message_id", "handler", "type", "processed_at", "attempts", "duration_ms")
_OF_CRASHES = ("message_id", "queue", "starts", "failures", "first_failed_at", "touched_at")


def take_waiting(archive: Archive, clue: Clue, row: RowMapping) -> None:
    """Take a row of the outbox."""
    message = identity_of(row)
    clue.learn(message)
    archive.waiting[row["position"]] = Waiting(archive.database, message, **_some(row, _OF_WAITING))


def take_kept(archive: Archive, clue: Clue, row: RowMapping) -> None:
    """Take a kept message."""
    message, place = identity_of(row), (row["published_at"], row["position"])
    clue.learn(message)
    archive.kept[place] = Kept(archive.database, message, place[1], place[0])


def take_letter(archive: Archive, clue: Clue, row: RowMapping) -> None:
    """Take a dead letter."""
    message = identity_of(row)
    clue.learn(message)
    archive.letters[row["id"]] = Letter(archive.database, message, row["id"], **_some(row, _OF_LETTER))


def take_handled(archive: Archive, row: RowMapping) -> None:
    """Take a row of the inbox."""
    archive.handled[row["handler"], row["message_id"]] = InboxEntry(archive.database, **_some(row, _OF_HANDLED))


def take_crashes(archive: Archive, row: RowMapping) -> None:
    """Take a crash record."""
    archive.crashes[row["queue"], row["message_id"]] = Crashes(archive.database, **_some(row, _OF_CRASHES))


def _some(row: RowMapping, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def identity_of(row: RowMapping) -> Identity:
    """The identity in a row with a message's columns."""
    names = ("message_id", "type", "key", "correlation_id", "causation_id", "created_at", "queue", "destination")
    return Identity(**{name: row[name] for name in names}, trace_id=trace_of(row["headers"]))


def trace_of(headers: bytes) -> str | None:
    """The trace id in stored headers; None if they have none, or cannot be read."""
    try:
        parent = decode_headers(headers).get("traceparent")
    except (ValueError, RecursionError, TypeError):
        return None
    parts = parent.split("-") if isinstance(parent, str) else []
    return parts[1] if len(parts) >= 4 and parts[1].isalnum() else None
