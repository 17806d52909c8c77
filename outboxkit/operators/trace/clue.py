"""The clue that a search begins with, and what it learns from the rows that it finds. Pure."""

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from outboxkit import ids
from outboxkit.codec.envelope import decode_headers
from outboxkit.operators.trace.entries import Archive, Crashes, Identity, InboxEntry, Kept, Letter, Waiting

MOST = 500
"""Messages that a search finds in one table before it ends."""


@dataclass(slots=True)
class Clue:
    """A message id, a key or a correlation id, with the messages that it has led to.

    Attributes:
        message_id, key, correlation_id: the one that was given.
        ids: message ids that are known: the given one, and those of messages that it has caused.
        stories: correlation ids of which all messages are looked for.
        begun: the earliest moment at which one of the messages was added, by its producer; None if nothing tells it.
    """

    message_id: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    ids: set[str] = field(default_factory=set)
    stories: set[str] = field(default_factory=set)
    begun: datetime | None = None

    def __post_init__(self) -> None:
        """Follow the given id. The first message of a story has no correlation id: its own id is that of the others."""
        if (story := self.correlation_id or self.message_id) is not None:
            self.ids.add(story)
            self.stories.add(story)
            self._date(ids.time_before(story))

    def learn(self, message: Identity) -> None:
        """Follow a message that was found: its id, and the story of the message that was asked for."""
        if message.message_id is None:
            return
        self.ids.add(message.message_id)
        if message.message_id == self.message_id:
            if message.correlation_id is not None:
                self.stories.add(message.correlation_id)
            self._date(message.created_at)

    def parameters(self) -> dict[str, Any]:
        """The parameters of a search: whose ids, stories and key match. With a key, no other message matches."""
        following = set[str]() if self.key is not None else self.ids
        return {"ids": sorted(following), "stories": sorted(self.stories), "key": self.key}

    def _date(self, moment: datetime | None) -> None:
        if moment is not None and (self.begun is None or moment < self.begun):
            self.begun = moment


def take_waiting(archive: Archive, clue: Clue, row: RowMapping) -> None:
    """Take a row of the outbox."""
    message = identity_of(row)
    clue.learn(message)
    archive.waiting[row["position"]] = Waiting(archive.database, message, **_columns_of(Waiting, row))


def take_kept(archive: Archive, clue: Clue, row: RowMapping) -> None:
    """Take a kept message."""
    message, place = identity_of(row), (row["published_at"], row["position"])
    clue.learn(message)
    archive.kept[place] = Kept(archive.database, message, place[1], place[0])


def take_letter(archive: Archive, clue: Clue, row: RowMapping) -> None:
    """Take a dead letter."""
    message = identity_of(row)
    clue.learn(message)
    columns = _columns_of(Letter, row) | {"number": row["id"]}  # a page of a search has a `number` of its own
    archive.letters[row["id"]] = Letter(archive.database, message, **columns)


def take_handled(archive: Archive, row: RowMapping) -> None:
    """Take a row of the inbox."""
    archive.handled[row["handler"], row["message_id"]] = InboxEntry(archive.database, **_columns_of(InboxEntry, row))


def take_crashes(archive: Archive, row: RowMapping) -> None:
    """Take a crash record."""
    archive.crashes[row["queue"], row["message_id"]] = Crashes(archive.database, **_columns_of(Crashes, row))


def identity_of(row: RowMapping) -> Identity:
    """The identity in a row with a message's columns."""
    return Identity(**_columns_of(Identity, row), trace_id=trace_of(row["headers"]))


def _columns_of(entry: type, row: RowMapping) -> dict[str, Any]:
    """The fields of an entry that are columns of the row."""
    return {each.name: row[each.name] for each in fields(entry) if each.name in row}


def trace_of(headers: bytes) -> str | None:
    """The trace id in stored headers; None if they have none, or cannot be read."""
    try:
        parent = decode_headers(headers).get("traceparent")
    except (ValueError, RecursionError, TypeError):
        return None
    parts = parent.split("-") if isinstance(parent, str) else []
    return parts[1] if len(parts) >= 4 and parts[1].isalnum() else None
