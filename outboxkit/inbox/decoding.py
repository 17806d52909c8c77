"""The event of a message. A large one is decoded in a thread, so that the event loop goes on while it is inflated."""

import asyncio

from sqlalchemy.orm import Session

from outboxkit import upcasts
from outboxkit.codec import LARGE, plain_size
from outboxkit.inbox.handlers import Handler
from outboxkit.message import Message
from outboxkit.sqlalchemy_asyncio import async_session, await_


async def event_for(handler: Handler, message: Message) -> object:
    """The event that the handler gets.

    Raises:
        DecodeError, NewerVersion: as `upcasts.event_of`.
    """
    if not _is_large(message):
        return upcasts.event_of(handler.event_type, message)
    return await asyncio.to_thread(upcasts.event_of, handler.event_type, message)


def event_within(session: Session, handler: Handler, message: Message) -> object:
    """The event that the handler gets in this session. It is decoded here if the session is not an asynchronous one.

    Raises:
        DecodeError, NewerVersion: as `upcasts.event_of`.
    """
    if async_session(session) is None or not _is_large(message):
        return upcasts.event_of(handler.event_type, message)
    return await_(event_for(handler, message))


def _is_large(message: Message) -> bool:
    return plain_size(message.payload, message.content_encoding, limit=LARGE) > LARGE
