"""The outbox: `add` writes a message next to the business rows, in the caller's own transaction."""

from collections.abc import Iterable
from typing import Any, Unpack

from sqlalchemy.orm import Session, scoped_session

from outboxkit import statements
from outboxkit.errors import EncodeError
from outboxkit.events import is_event
from outboxkit.message import Message
from outboxkit.outbox.drafts import Drafts, Options, check_options
from outboxkit.outbox.pending import wait_for_flush, writing_connection
from outboxkit.transaction import AnySession, session_of

__all__ = ["AnySession", "Options", "add", "add_all", "cancel"]


def add(session: AnySession, event: object, **options: Unpack[Options]) -> Message:
    """Send `event` if, and only if, the session's transaction commits.

    An ordinary function for every kind of session, as `AsyncSession.add` is. It encodes at once, so that a bad event
    fails in the caller's stack, and does no I/O. The row is written with the session's next flush, after the business
    rows. A rollback, also one to a savepoint, forgets the message. Until the flush `expunge_all` and `close` forget it,
    too, as they forget new objects.

    Inside a handler the correlation id, the causation id and the trace context come from the message being handled.

    Args:
        session: a `Session`, an `AsyncSession`, or a scoped variant of either.
        event: an instance of an `@event` class, or a ready-made `Message`, whose own properties are the defaults of the
            options then.
        options: as `Options` says: `key`, `headers`, `deliver_at` and others.

    Returns:
        The message as it will be sent.

    Raises:
        EncodeError: the event, or one of the options, cannot be stored and sent.
        ConfigurationError: the class is not an `@event`, or `max_payload_bytes` is not a whole number from 1.
        TypeError: `session` is none of the four kinds, or there is no such option.
        TransactionRequired: the session's connection is in autocommit mode. If only the connection tells, the flush
            raises it, before anything is written.
    """
    opened = session_of(session, "outbox.add")
    check_options("add", options)
    draft = Drafts(options, opened).of(event)
    wait_for_flush(opened, [draft])
    return draft.message


def add_all(session: AnySession, events: Iterable[object], **options: Unpack[Options]) -> list[Message]:
    """`add` for many events with the same options: all of them, or none if one cannot be encoded.

    They are inserted in their order with the session's next flush, on PostgreSQL in one statement for each thousand.

    Raises:
        EncodeError: as `add`; also a `message_id` for more than one event.
        TypeError: as `add`; also one event in place of several.
    """
    opened = session_of(session, "outbox.add_all")
    check_options("add_all", options)
    if isinstance(events, Message) or is_event(type(events)):
        kind = type(events).__qualname__
        raise TypeError(f"outbox.add_all takes several events, as in a list; found one, {kind}: outbox.add takes one")
    sequence = list(events)
    if options.get("message_id") is not None and len(sequence) > 1:
        raise EncodeError(
            f"message_id is for one message, and there are {len(sequence)} events; leave it out, or add them one by one"
        )
    maker = Drafts(options, opened)
    drafts = [maker.of(event) for event in sequence]
    wait_for_flush(opened, drafts)
    return [draft.message for draft in drafts]


def cancel(session: Session | scoped_session[Any], message_id: str) -> bool:
    """Take a message back, in the session's transaction: it is not published if, and only if, that commits.

    The session is flushed first. While a relay is publishing the message, this waits for the result, for
    `OUTBOXKIT_PUBLISH_TIMEOUT` at most. At isolation level REPEATABLE READ or above, PostgreSQL then raises a
    serialization failure instead. An earlier publish without an answer may have reached the broker all the same.

    With an `AsyncSession`: `await session.run_sync(outbox.cancel, message_id)`.

    For a message that waits for its time, a retry or an operator it costs one probe of an index. A ready one has no
    index by its id, so that inserts stay cheap. Then the whole outbox is read: some tenths of a second at a million
    waiting rows.

    Returns:
        True if the message was in the outbox; False if it was published, is a dead letter, or never existed.

    Raises:
        TypeError: `session` is an asynchronous one, or not a session.
        TransactionRequired: the session's connection is in autocommit mode.
    """
    opened = session_of(session, "outbox.cancel", "message_id")
    connection = writing_connection(opened)
    opened.flush()
    for statement in (statements.write.cancel_delayed(), statements.write.cancel_message()):
        if connection.execute(statement, {"message_id": message_id}).rowcount > 0:
            return True
    return False
