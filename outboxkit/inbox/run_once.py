"""`run_once`: the rule behind "each effect happens once", for one message and one handler."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from zlib import crc32

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from outboxkit import statements
from outboxkit.codec import upcasts
from outboxkit.codec.payloads import LARGE, plain_size
from outboxkit.database.sqlalchemy_asyncio import async_session, await_
from outboxkit.inbox.call import call, ended, held, opened
from outboxkit.inbox.handlers import Handler, handler_of
from outboxkit.message import Message
from outboxkit.runtime import window
from outboxkit.telemetry import tracing

_OTHER_PAYLOAD = (
    "two messages have the id %r: a duplicate of type %s has another payload than the message that handler %s had. "
    "It is not handled. Leave message_id out, or derive it from what tells the messages apart; `outboxkit reconcile` "
    "counts such ids"
)
_warned: set[str] = set()
"""The handlers of this process that the warning has named."""


class Outcome(StrEnum):
    """The outcome of a delivery at one handler."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    RETRIED = "retried"
    DEAD = "dead"
    STALE = "stale"


def run_once(
    session: Session | scoped_session[Any],
    message: Message,
    handler: Callable[..., Any] | Handler,
    *,
    attempt: int = 1,
    accepted_at: datetime | None = None,
) -> Outcome:
    """Run `handler` for `message`, unless it has already run: the rule behind "each effect happens once".

    Inserts the inbox row in the session's transaction, then calls the handler with that session, so that both
    commit, or neither does. While another transaction handles the same message, this call waits for its end. The
    caller commits; after an exception it must roll back, or the message counts as handled.

    With an `AsyncSession`, `await session.run_sync(inbox.run_once, message, handler)`; an `async def` handler then
    gets the `AsyncSession`, and a handler's timeout holds. In any other session it does not.

    The caller checks the age of the message first, with `inbox.is_stale`. This call cannot tell whether a message was
    handled that is older than the inbox retention.

    Args:
        session: in a transaction.
        message: the message that arrived.
        handler: a function with `@inbox_handler`, or its `Handler`.
        attempt: the number of the attempt, from 1; stored in the inbox row.
        accepted_at: the time at which an operator accepted a stale message.

    Returns:
        `Outcome.PROCESSED`, or `Outcome.DUPLICATE` if the handler was not called.

    Raises:
        TransactionRequired: the session is in no transaction, or its connection is in autocommit mode. Or the handler
            itself committed or rolled back, or went on after an error that aborted the transaction.
        TimeoutError: the handler took longer than its timeout.
        TypeError: the session is of another kind.
        DecodeError: the payload is not the handler's event; nothing was inserted.
        NewerVersion: the message has a newer version than the handler's event; nothing was inserted.
        ConfigurationError: the function is not a handler, or it is async and the session is not.
    """
    spec = handler if isinstance(handler, Handler) else handler_of(handler)
    session, connection = opened(session, "run_once", "message, handler")
    with tracing.processing(message, spec.name, attempt=attempt) as span:
        outcome = _run(session, connection, spec, message, attempt, accepted_at)
        span.ends_as(outcome)
    return outcome


def _run(
    session: Session,
    connection: Connection,
    handler: Handler,
    message: Message,
    attempt: int,
    accepted_at: datetime | None,
) -> Outcome:
    event = _event_within(session, handler, message)
    row = {
        "handler": handler.name,
        "message_id": message.id,
        "type": message.type,
        "attempts": attempt,
        "payload_crc": payload_crc(message.payload),
        "made": window.message_time(message.id, message.created_at, accepted_at),
    }
    record = connection.execute(statements.inbox.record_processed(connection.dialect.name, guarded=True), row).first()
    if record is None:
        warn_of_other_payloads(connection, [(handler.name, message)])
        return Outcome.DUPLICATE
    installation, transaction = record[1], record[2] if len(record) > 2 else None
    with held(session, connection, transaction, ended(handler.name)):
        milliseconds = call(handler, session, connection, event, message, attempt=attempt, installation=installation)
        if milliseconds is not None:
            duration = {"at_handler": handler.name, "at_message_id": message.id, "milliseconds": milliseconds}
            connection.execute(statements.inbox.record_duration(), duration)
    return Outcome.PROCESSED


async def event_for(handler: Handler, message: Message) -> object:
    """The event that the handler gets. A large one is decoded in a thread, so that the event loop goes on meanwhile.

    Raises:
        DecodeError, NewerVersion: as `upcasts.event_of`.
    """
    if not _is_large(message):
        return upcasts.event_of(handler.event_type, message)
    return await asyncio.to_thread(upcasts.event_of, handler.event_type, message)


def _event_within(session: Session, handler: Handler, message: Message) -> object:
    """The event that the handler gets in this session. It is decoded here if the session is not an asynchronous one.

    Raises:
        DecodeError, NewerVersion: as `upcasts.event_of`.
    """
    if async_session(session) is None or not _is_large(message):
        return upcasts.event_of(handler.event_type, message)
    return await_(event_for(handler, message))


def _is_large(message: Message) -> bool:
    return plain_size(message.payload, message.content_encoding, limit=LARGE) > LARGE


def payload_crc(payload: bytes) -> int:
    """The CRC-32 of a payload, as the signed number that a column of four bytes holds."""
    return (crc32(payload) ^ 0x8000_0000) - 0x8000_0000


def warn_of_other_payloads(connection: Connection, duplicates: Sequence[tuple[str, Message]]) -> None:
    """Log a warning if a handler's duplicate has another payload than the message that it handled under this id.

    It costs a statement for duplicates, and comes once for each handler of a process; `outboxkit reconcile` counts all.

    Args:
        connection: in the transaction that found the duplicates.
        duplicates: names of handlers, each with its message.
    """
    unwarned = [(handler, message) for handler, message in duplicates if handler not in _warned]
    if not unwarned:
        return
    names = {"handlers": sorted({name for name, _ in unwarned}), "ids": sorted({each.id for _, each in unwarned})}
    rows = connection.execute(statements.inbox.payload_crcs(connection.dialect.name), names)
    crcs = {(handler, message_id): crc for handler, message_id, crc in rows}
    for handler, message in unwarned:
        if handler not in _warned and crcs.get((handler, message.id)) not in (None, payload_crc(message.payload)):
            _warned.add(handler)
            logging.getLogger("outboxkit").warning(_OTHER_PAYLOAD, message.id, message.type, handler)
