"""The same rule for many messages in one transaction, for handlers that may be run again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from outboxkit import codec, statements, window
from outboxkit.errors import ConfigurationError
from outboxkit.inbox.call import call, opened
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.run_once import Outcome
from outboxkit.message import Message

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One message for one handler, decoded.

    Attributes:
        message: what arrived.
        handler: one with `batch=True`.
        event: the message's payload as the handler's event.
        attempt: which attempt it is, from 1; noted in the inbox row.
        accepted_at: when an operator said that a stale message is to be handled all the same.
    """

    message: Message
    handler: Handler
    event: object
    attempt: int = 1
    accepted_at: datetime | None = None

    @classmethod
    def of(
        cls, message: Message, handler: Handler, *, attempt: int = 1, accepted_at: datetime | None = None
    ) -> "Entry":
        """The entry of a message that is still to be decoded.

        Raises:
            DecodeError: the payload is not the handler's event.
        """
        event: object = codec.decode(handler.event_type, message.payload, message.content_encoding)
        return cls(message, handler, event, attempt, accepted_at)

    @property
    def key(self) -> Key:
        """What the inbox knows it by."""
        return self.handler.name, self.message.id


class BatchEntryFailed(Exception):
    """A batch failed where this entry's handler ran; its `__cause__` is what the handler raised.

    It is the one to look at first. Another one may be to blame: what an earlier handler left in the session is written
    before a later one's query.

    Args:
        index: its place in the batch, from 0.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"the handler of entry {index} of the batch failed")
        self.index = index


def run_batch(session: Session | scoped_session[Any], entries: Sequence[Entry]) -> list[Outcome]:
    """`run_once` for many entries, in the one transaction that the session is in.

    Inserts all inbox rows in one statement, then runs the handlers of those that are new in the order of the entries,
    then flushes once. A second entry of one message and handler is a duplicate of the first. After an exception the
    caller must roll back, and nothing of the whole batch has happened: it may run other entries, or fewer, again.

    With an `AsyncSession`: `await session.run_sync(inbox.run_batch, entries)`.

    Returns:
        The outcome of each entry: `Outcome.PROCESSED`, or `Outcome.DUPLICATE` where nothing was called.

    Raises:
        Culprit: a handler raised, or did what makes `run_once` raise. Errors of the last flush come as they are.
        TransactionRequired: the session is in no transaction, or its connection is in autocommit mode.
        TypeError: the session is of another kind.
        ConfigurationError: a handler has no `batch=True`: nobody said that it may be run again.
    """
    for entry in entries:
        if not entry.handler.batch:
            raise ConfigurationError(
                f"handler {entry.handler.name!r} may not be run again, as one in a batch is when another fails; say "
                f"@inbox_handler({entry.handler.name!r}, batch=True), or use run_once"
            )
    session, connection = opened(session, "run_batch", "entries")
    new = _record(connection, entries)
    outcomes: list[Outcome] = []
    long: list[dict[str, object]] = []
    for index, entry in enumerate(entries):
        if entry.key not in new:
            outcomes.append(Outcome.DUPLICATE)
            continue
        new.remove(entry.key)
        try:
            took = call(entry.handler, session, connection, entry.event, entry.message, flush=False)
        except asyncio.CancelledError:  # it may be the caller's, who knows
            raise
        except BaseException as error:
            raise BatchEntryFailed(index) from error
        if took is not None:
            long.append({"at_handler": entry.handler.name, "at_message_id": entry.message.id, "milliseconds": took})
        outcomes.append(Outcome.PROCESSED)
    session.flush()
    if long:
        connection.execute(statements.inbox.took(), long)
    return outcomes


def _record(connection: Connection, entries: Sequence[Entry]) -> set[Key]:
    """Insert the inbox rows; returns the keys of the new ones.

    In one order, whatever the order of the entries: two batches that share messages wait for each other one way only.
    """
    if not entries:
        return set()
    first = {entry.key: entry for entry in reversed(entries)}
    wanted = [first[key] for key in sorted(first)]
    lists = {
        "handlers": [entry.handler.name for entry in wanted],
        "message_ids": [entry.message.id for entry in wanted],
        "types": [entry.message.type for entry in wanted],
        "attempts": [entry.attempt for entry in wanted],
        "mades": [
            window.message_time(entry.message.id, entry.message.created_at, entry.accepted_at) for entry in wanted
        ],
    }
    found = connection.execute(statements.inbox.record_all(connection.dialect.name), lists)
    return {(handler, message_id) for handler, message_id in found}
