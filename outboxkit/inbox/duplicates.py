"""Duplicates whose payload is another one: an id was given to two messages, and the inbox lets one of them through."""

import logging
from collections.abc import Sequence
from zlib import crc32

from sqlalchemy import Connection

from outboxkit import statements
from outboxkit.message import Message

_TEXT = (
    "two messages have the id %r: a duplicate of type %s has another payload than the message that handler %s had. "
    "It is not handled. Leave message_id out, or derive it from what tells the messages apart; `outboxkit reconcile` "
    "counts such ids"
)
_warned: set[str] = set()
"""The handlers of this process that the warning has named."""


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
            logging.getLogger("outboxkit").warning(_TEXT, message.id, message.type, handler)
