"""The write side: `add` puts a message beside the business rows, in the caller's own transaction."""

from collections.abc import Iterable
from typing import Any, Unpack

from sqlalchemy.orm import Session, scoped_session

from outboxkit import statements
from outboxkit.errors import EncodeError
from outboxkit.message import Message
from outboxkit.outbox.drafts import Drafts, Options, check_options
from outboxkit.outbox.pending import wait_for_flush, writing_connection
from outboxkit.transaction import AnySession, session_of

__all__ = ["AnySession", "Options", "add", "add_all", "cancel"]


def add(session: AnySession, event: object, **options: Unpack[Options]) -> Message:
    """Send `event` if, and only if, the session's transaction commits.

    An ordinary function for every kind of session (`AsyncSession.add` is no coroutine either): it encodes now, so
    that a bad event fails in the caller's stack, and does no I/O of its own. The row is written with the session's next
    flush, behind the business rows. A rollback, also one to a savepoint, forgets the message.

    Inside a handler the correlation id, the causation id and the trace context come from the message being handled.

    Args:
        session: a `Session`, an `AsyncSession`, or a scoped variant of either.
        event: an instance of an `@event` class, or a ready-made `Message`, whose own properties then count where an
            option is not given.
        options: as `Options` says: `key`, `headers`, `deliver_at` and others.

    Returns:
        The message as it will be sent.

    Raises:
        EncodeError: the event, or one of the options, cannot be stored and sent.
        ConfigurationError: the class is no `@event`, or `max_payload_bytes` is not a whole number from 1.
        TypeError: `session` is none of the four kinds, or there is no such option.
        TransactionRequired: the session's connection is in autocommit mode. Where only the connection tells, the flush
            raises it, before anything is written.
    """
    opened = session_of(session, "outbox.add")
    check_options("add", options)
    draft = Drafts(options).of(event)
    wait_for_flush(opened, [draft])
    return draft.message


def add_all(session: AnySession, events: Iterable[object], **options: Unpack[Options]) -> list[Message]:
    """`add` for many events with the same options: all of them, or none where one cannot be encoded.

    They are inserted in their order with the session's next flush, on PostgreSQL in one statement for each thousand.

    Raises:
        EncodeError: as `add`; also a `message_id` for more than one event.
    """
    opened = session_of(session, "outbox.add_all")
    check_options("add_all", options)
    listed = list(events)
    if options.get("message_id") is not None and len(listed) > 1:
        raise EncodeError(
            f"message_id names one message, and {len(listed)} events were given; leave it out, or add them one by one"
        )
    made = Drafts(options)
    drafts = [made.of(event) for event in listed]
    wait_for_flush(opened, drafts)
    return [draft.message for draft in drafts]


def cancel(session: Session | scoped_session[Any], message_id: str) -> bool:
    """Take a message back, in the session's transaction: it is not published if, and only if, that commits.

    The session is flushed first. While a relay is publishing the message, this waits for what becomes of it, for
    `OUTBOXKIT_PUBLISH_TIMEOUT` at most; at isolation level REPEATABLE READ or above, PostgreSQL then raises a
    serialization failure instead. A publish whose outcome the relay never learned may have reached the broker all the
    same.

    With an `AsyncSession`: `await session.run_sync(outbox.cancel, message_id)`.

    It costs one probe of an index for a message that waits for its time, a retry or an operator. One that could go at
    once has no index by its id, so that inserts stay cheap: then the whole outbox is read, at a million waiting rows
    some tenths of a second.

    Returns:
        True where the message was in the outbox; False where it was published, is among the dead letters, or never was.

    Raises:
        TypeError: `session` is an asynchronous one, or none at all.
        TransactionRequired: the session's connection is in autocommit mode.
    """
    opened = session_of(session, "outbox.cancel", "message_id")
    connection = writing_connection(opened)
    opened.flush()
    for statement in (statements.write.cancel_delayed(), statements.write.cancel()):
        if connection.execute(statement, {"message_id": message_id}).rowcount > 0:
            return True
    return False
