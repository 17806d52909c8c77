"""`run_batch`: the inbox's rule for many messages in one transaction, for handlers that may be run again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.exc import FlushError

from outboxkit import statements
from outboxkit.codec import upcasts
from outboxkit.database import transaction
from outboxkit.database.transaction import HandlerSession
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.inbox.handlers import Handler
from outboxkit.inbox.run_once import Outcome, call, opened, payload_crc, warn_of_other_payloads
from outboxkit.message import Message
from outboxkit.runtime import window
from outboxkit.telemetry import tracing

Key = tuple[str, str]
COMMITTED = (Outcome.PROCESSED, Outcome.DUPLICATE)
"""The outcomes of the entries of a batch that commits."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded message for one handler.

    Attributes:
        message: the message that arrived.
        handler: one with `batch=True`.
        event: the message's payload, decoded to the handler's event.
        attempt: the number of the attempt, from 1; stored in the inbox row.
        accepted_at: the time at which an operator accepted a stale message.
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
        """The entry of a message, which is decoded here.

        Raises:
            DecodeError: the payload is not the handler's event.
            NewerVersion: the message has a newer version than the handler's event.
        """
        return cls(message, handler, upcasts.event_of(handler.event_type, message), attempt, accepted_at)

    @property
    def key(self) -> Key:
        """The primary key of its inbox row."""
        return self.handler.name, self.message.id


class BatchEntryFailed(Exception):
    """A batch failed while this entry's handler ran; its `__cause__` is the handler's error.

    Another entry may be to blame: one that ran before, for an error that comes late.

    Args:
        index: the entry's index in the batch, from 0.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"the handler of entry {index} of the batch failed")
        self.index = index


def run_batch(session: Session | scoped_session[Any], entries: Sequence[Entry]) -> list[Outcome]:
    """`run_once` for many entries, in the one transaction that the session is in.

    Inserts all inbox rows in one statement, then runs the handlers of those that are new in the order of the entries.
    Each is flushed, and the next one finds no objects of it: they have expired, or are gone from a worker's session. A
    second entry of one message and handler is a duplicate of the first. After an exception the caller must
    roll back, and nothing of the whole batch has happened: it may run other entries, or fewer, again.

    With an `AsyncSession`: `await session.run_sync(inbox.run_batch, entries)`.

    Returns:
        The outcome of each entry: `Outcome.PROCESSED`, or `Outcome.DUPLICATE` if its handler was not called.

    Raises:
        BatchEntryFailed: a handler failed, for any reason that `run_once` has, or left a savepoint open.
        TransactionRequired: the session is in no transaction, or its connection is in autocommit mode.
        TypeError: the session is of another kind.
        ConfigurationError: a handler has no `batch=True`, which declares that it may be run again.
    """
    for entry in entries:
        if not entry.handler.batch:
            raise ConfigurationError(
                f"handler {entry.handler.name!r} is not declared as safe to run again, which a batch does after a "
                f"failure: write @inbox_handler({entry.handler.name!r}, batch=True), or use run_once"
            )
    session, connection = opened(session, "run_batch", "entries")
    with traced([entry.message for entry in entries]) as span:
        outcomes = _run(session, connection, entries)
        span.counts(outcomes, fine=COMMITTED)
    return outcomes


@contextmanager
def traced(messages: Sequence[Message], *, at: tracing.Endpoint = tracing.HERE) -> Iterator[tracing.WorkSpan]:
    """The span of a batch, which has the error of the handler that failed."""
    with tracing.processing_batch(messages, at=at) as span:
        try:
            yield span
        except BatchEntryFailed as error:
            span.fails(error.__cause__ or error)
            raise


def _run(session: Session, connection: Connection, entries: Sequence[Entry]) -> list[Outcome]:
    unmarked = transaction.current_session_name(connection)
    new, number = _record(connection, entries)
    outcomes: list[Outcome] = []
    names = " or ".join(sorted({handler for handler, _ in new}))
    neighbours = _Neighbours(session, connection, transaction.still_in(connection, number, unmarked=unmarked))

    with transaction.guard_until_end(session, connection, number, transaction.ended(names)) if new else nullcontext():
        for index, entry in enumerate(entries):
            if entry.key not in new:
                outcomes.append(Outcome.DUPLICATE)
                continue
            name, given = entry.handler.name, (entry.handler, session, connection, entry.event, entry.message)
            leave = partial(neighbours.write, name)
            try:
                call(*given, attempt=entry.attempt, installation=new.pop(entry.key), leave=leave)
                neighbours.part(name)
            except Exception as error:
                raise BatchEntryFailed(index) from error
            outcomes.append(Outcome.PROCESSED)
        again = [entry for entry, outcome in zip(entries, outcomes, strict=True) if outcome is Outcome.DUPLICATE]
        warn_of_other_payloads(connection, [(entry.handler.name, entry.message) for entry in again])
    return outcomes


class _Neighbours:
    """Handlers of one batch, each of which finds session and connection as if they were new, in one transaction."""

    def __init__(self, session: Session, connection: Connection, is_same: Callable[[], bool]) -> None:
        self._session, self._connection, self._is_same = session, connection, is_same
        self._savepoint, self._options = session.get_nested_transaction(), connection.get_execution_options()
        self._autoflush, self._expires = session.autoflush, session.expire_on_commit

    def write(self, handler: str) -> None:
        """Flush until nothing is left, as a handler's last deed: listeners may add more, and savepoints end with it.

        Raises:
            FlushError: something is left after a hundred flushes, as in a commit of SQLAlchemy's.
        """
        session = self._session
        if transaction.has_savepoint(session, self._connection, self._savepoint):
            raise TransactionRequired(f"handler {handler!r} left a savepoint open, which others must not be part of")
        for _ in range(100):
            session.flush()
            if not (session.new or session.dirty or session.deleted):
                return
        raise FlushError(
            f"handler {handler!r} leaves something in its session after each flush: does a listener add it?"
        )

    def part(self, handler: str) -> None:
        """Make sure that it is the same transaction, and take away what the handler has left to the next one."""
        if not self._is_same():
            raise TransactionRequired(transaction.ended(handler))
        if isinstance(self._session, HandlerSession):
            self._session.expunge_all()  # those that the application keeps stay loaded, as after a commit
        else:
            self._session.expire_all()
        self._session.autoflush, self._session.expire_on_commit = self._autoflush, self._expires
        driver: Any = self._connection.connection.driver_connection
        for name in ("row_factory", "cursor_factory") if hasattr(driver, "ending") else ():  # a worker's psycopg
            setattr(driver, name, driver.options[name])
        if self._connection.get_execution_options() is not self._options:  # SQLAlchemy changes them in place
            self._connection._execution_options = self._options  # noqa: SLF001 - no method takes an option away


def _record(connection: Connection, entries: Sequence[Entry]) -> tuple[dict[Key, str], str | None]:
    """Insert the inbox rows; returns the keys of the new ones, each with the tables' installation, and the transaction.

    The rows are sorted, so that two batches that share messages cannot deadlock.
    """
    if not entries:
        return {}, None
    first = {entry.key: entry for entry in reversed(entries)}
    unique = [first[key] for key in sorted(first)]
    lists = {
        "handlers": [entry.handler.name for entry in unique],
        "message_ids": [entry.message.id for entry in unique],
        "types": [entry.message.type for entry in unique],
        "attempts": [entry.attempt for entry in unique],
        "payload_crcs": [payload_crc(entry.message.payload) for entry in unique],
        "mades": [
            window.message_time(entry.message.id, entry.message.created_at, entry.accepted_at) for entry in unique
        ],
    }
    rows = connection.execute(statements.inbox.record_all(connection.dialect.name, guarded=True), lists).all()
    new = {(handler, message_id): installation for handler, message_id, installation, *_ in rows}
    return new, rows[0][3] if rows and len(rows[0]) > 3 else None
