"""Pages of messages, what is in one, keys that wait, and the last hour: for people who look rather than ask."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select

from outboxkit import schema, tables
from outboxkit.errors.figures import COUNTED, Count, counted
from outboxkit.operators.sql import listing, trace
from outboxkit.operators.sql.listing import Choice, WaitingState
from outboxkit.operators.trace.reading import TraceQuery, read_messages
from outboxkit.operators.trace.reasons import because
from outboxkit.statements import status
from outboxkit.statements.dialects import is_server
from outboxkit.statements.server import moment

__all__ = [
    "Choice",
    "Content",
    "KeyThatWaits",
    "MessagePage",
    "Minute",
    "read_content",
    "read_hour",
    "read_keys",
    "read_now",
    "read_page",
]

WINDOW = 50_000
"""Rows that are read for a page, at most."""
MOST_DESTINATIONS, MOST_KEYS = 100, 50
MINUTES, SAMPLE = 60, 500
_LAST = 2**63 - 1
Cursor = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a filter.

    Attributes:
        after: the place behind which the next page begins; None: there are no more.
        is_searched: whether the page ended because `WINDOW` rows were read, and not because it was full.
    """

    rows: Sequence[Row[Any]]
    after: Cursor | None
    is_searched: bool
    now: datetime


def read_page(connection: Connection, filter_: Choice, *, after: Cursor | None, limit: int) -> MessagePage:
    """The next messages of a filter behind a place, at most `limit`."""
    now = read_now(connection)
    rows, end = list[Row[Any]](), None
    walks = listing.walks_of(filter_)

    def place(row: Row[Any]) -> Cursor:
        return tuple(getattr(row, name) for name in walks[0].order)

    for walk in walks:
        statement = listing.page_of_messages(filter_, walk, after)
        found = connection.execute(statement, {"window": WINDOW, "limit": limit + 1}).all()
        if found and found[-1].number == WINDOW:
            end = min(filter(None, (end, place(found[-1]))))
        rows += [row for row in found if row.is_match]
    rows.sort(key=place, reverse=walks[0].backwards)
    if end is not None:  # of several walks: behind the end of one nothing is known
        rows = [row for row in rows if place(row) <= end or walks[0].backwards]
    if len(rows) > limit:
        return MessagePage(rows[:limit], place(rows[limit - 1]), is_searched=False, now=now)
    return MessagePage(rows, end, is_searched=end is not None, now=now)


@dataclass(frozen=True, slots=True)
class Content:
    """What is in a message, as a table has it.

    Attributes:
        where: the table, in words.
    """

    where: str
    type: str | None
    payload: bytes
    headers: bytes
    content_type: str
    content_encoding: str | None
    version: int


def read_content(connection: Connection, message_id: str) -> Content | None:
    """What is in a message, if a table that was read still has it."""
    rows = read_messages(connection, TraceQuery(message_id=message_id))
    ours = [
        ("the outbox", tables.outbox, rows.waiting.values()),
        ("the kept messages", tables.published, rows.kept.values()),
        ("the dead letters", tables.dead_letter, rows.letters.values()),
    ]
    for where, table, found in ours:
        statement = listing.content_of(table)
        for row in (row for row in found if row.message_id == message_id):
            key = {column.name: getattr(row, column.name) for column in table.primary_key}
            if content := connection.execute(statement, key).one_or_none():
                return Content(where, *content)
    return None


@dataclass(frozen=True, slots=True)
class KeyThatWaits:
    """A key whose messages wait for one of them.

    Attributes:
        dead: how many dead letters park it; none if its first message is tried again.
        message_id: of the message that the others wait for.
        why: its error.
        due_at: its next attempt.
    """

    key: str
    destination: str
    waiting: Count
    dead: int
    message_id: str | None
    why: str
    due_at: datetime | None

    @property
    def state(self) -> WaitingState:
        """The state of the messages that wait."""
        return "parked" if self.dead else "held"


def read_keys(connection: Connection) -> list[KeyThatWaits]:
    """The keys that wait, parked ones first; of either kind those with the most messages, at most `MOST_KEYS`."""
    read_now(connection)
    most = {"limit": COUNTED + 1, "most": MOST_DESTINATIONS, "top": MOST_KEYS}
    names = connection.execute(status.destinations(), most).scalars().all()

    def largest(keys: Select[Any]) -> list[tuple[str, Row[Any]]]:
        rows = [(name, row) for name in names for row in connection.execute(keys, most | {"destination": name})]
        return sorted(rows, key=lambda each: -each[1][1])[:MOST_KEYS]

    return [*_parked(connection, largest(status.parked_keys())), *_held(connection, largest(listing.held_keys()))]


def _parked(connection: Connection, keys: Iterable[tuple[str, Row[Any]]]) -> Iterator[KeyThatWaits]:
    for destination, row in keys:
        key, rows, dead, *_ = tuple(row)
        of_key = {"key": key, "destination": destination, "position": _LAST}
        letter = connection.execute(trace.parking(), of_key).one_or_none()
        if letter is not None:
            why = f"{letter.reason}{because(letter)}"
            yield KeyThatWaits(key, destination, counted(rows), dead, letter.message_id, why, None)


def _held(connection: Connection, keys: Iterable[tuple[str, Row[Any]]]) -> Iterator[KeyThatWaits]:
    for destination, row in keys:
        key, rows = tuple(row)
        of_key = {"key": key, "destination": destination, "position": _LAST}
        first = connection.execute(trace.first_held_before(), of_key).one_or_none()
        if first is not None:
            yield KeyThatWaits(
                key, destination, counted(rows), 0, first.message_id, first.last_error or "", first.due_at
            )


@dataclass(frozen=True, slots=True)
class Minute:
    """What was published in a minute.

    Attributes:
        messages: how many; estimated from the first ones if there are many.
        lag: the mean time from `add` to publish in seconds, of the first ones; None if there are none.
    """

    at: datetime
    messages: int
    is_estimated: bool
    lag: float | None


def read_hour(connection: Connection) -> list[Minute] | None:
    """The minutes of the last hour, by the messages that are kept; None if none is kept."""
    now, minutes = read_now(connection), list[Minute]()
    if connection.execute(status.oldest_published()).scalar_one() is None:
        return None
    statement = listing.published_between(connection.dialect.name)
    last = now.replace(second=0, microsecond=0)
    for at in (last - timedelta(minutes=minute) for minute in range(MINUTES, 0, -1)):
        asked = {"since": at, "until": at + timedelta(minutes=1), "limit": SAMPLE}
        count, latest, lag = connection.execute(statement, asked).one()
        is_estimated = count == SAMPLE
        messages = round(count * 60 / max((latest - at).total_seconds(), 0.001)) if is_estimated else count
        minutes.append(Minute(at, messages, is_estimated, None if lag is None else max(float(lag), 0.0)))
    return minutes


def read_now(connection: Connection) -> datetime:
    """Make sure that the tables can be read, by their indexes; returns the time by the database's clock."""
    schema.check_readable(connection)
    if is_server(connection.dialect.name):
        connection.execute(status.forbid_sorting())
    now: datetime = connection.execute(moment(connection.dialect.name)).scalar_one()
    return now
