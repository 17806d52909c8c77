"""The decision whether a dead letter may be replayed, and the headers of one that goes back to its queue. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Row

from outboxkit import defaults
from outboxkit.codec.headers import DeliveryHeaders, carried, read_delivery_headers
from outboxkit.codec.rows import TEXTS, decode_headers
from outboxkit.errors import EncodeError
from outboxkit.message import NAME_LIMIT, Message
from outboxkit.runtime import window
from outboxkit.runtime.settings import Settings


def of_replay(letter: Row[Any], *, accepted_at: datetime | None) -> bytes:
    """The message's own headers, and those that name the handler that gave it up, or the handlers that it is for.

    If it is not a message, they also name the properties that it came without.

    Raises:
        ValueError: the stored headers cannot be read.
    """
    try:
        headers = decode_headers(letter.headers)
        handlers = read_delivery_headers(headers).handlers if letter.handler is None else (letter.handler,)
        extra = DeliveryHeaders(
            handlers=handlers, accepted_at=accepted_at, absent=_absent(letter), replayed=True
        ).headers()
        return msgspec.json.encode(carried(headers) | extra)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def accepted(letter: Row[Any], now: datetime) -> bytes:
    """The headers of a dead letter of the outbox, with the time of its replay: by that it is not stale any more.

    Headers that cannot be read stay as they are.
    """
    try:
        headers = decode_headers(letter.headers)
    except (ValueError, RecursionError):
        return bytes(letter.headers)
    return msgspec.json.encode(headers | DeliveryHeaders(accepted_at=now).headers())


class Refusal(StrEnum):
    """The reason for which a replay leaves a dead letter as it is."""

    TAKEN = "taken"
    NO_PLACE = "no place"
    MALFORMED = "malformed"
    NO_QUEUE = "no queue"
    STALE = "stale"

    @property
    def plain(self) -> str:
        """The reason in a sentence, with its cure."""
        return _PLAIN[self]


_PLAIN = {
    Refusal.TAKEN: "its place in the outbox is taken; the same message may wait there already: compare it with "
    "`outboxkit dead show`, and discard the duplicate",
    Refusal.NO_PLACE: "no place in the outbox is known for it; it can be discarded",
    Refusal.MALFORMED: "it has no id or no type, or a value that no message can hold. Its producer must send it "
    "again, and it can be discarded. If its consumer has a reader by now that knows its id and type, "
    "set the same OUTBOXKIT_READERS",
    Refusal.NO_QUEUE: "no queue is known to send it back to; it can be discarded",
    Refusal.STALE: "older than the inbox is sure to remember: it may have been handled, and a replay may repeat its "
    "effects. Find out; then add --accept-stale, or discard it",
}


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """The rules by which dead letters may be sent again.

    Attributes:
        accept_stale: also replay stale ones, which get the time of the replay.
        has_readers: whether the consumers have readers of foreign envelopes. Those without an id or a type are replayed
            then, as they came.
    """

    retention: timedelta = defaults.INBOX_RETENTION
    skew: timedelta = window.CLOCK_SKEW
    accept_stale: bool = False
    has_readers: bool = False

    def refusal(self, letter: Row[Any], now: datetime) -> Refusal | None:
        """The reason for which this dead letter cannot be replayed, or None. Its place in the outbox is not checked."""
        if letter.side == "outbox":
            return Refusal.NO_PLACE if letter.position is None else None
        if not (_is_message(letter) or (self.has_readers and _absent(letter))):
            return Refusal.MALFORMED
        if not letter.queue or len(letter.queue.encode()) > NAME_LIMIT:
            return Refusal.NO_QUEUE
        return Refusal.STALE if self.is_stale(letter, now) and not self.accept_stale else None

    def is_stale(self, letter: Row[Any], now: datetime) -> bool:
        """Whether a consumer would find it stale. A dead letter with the reason `stale` always is."""
        made_at = window.message_time(letter.message_id or "", letter.created_at)
        return letter.reason == "stale" or window.is_too_old(made_at, now=now, retention=self.retention, skew=self.skew)


def rules_of(settings: Settings, *, accept_stale: bool = False) -> ReplayRules:
    """The rules by the consumers' settings."""
    return ReplayRules(settings.inbox_retention, accept_stale=accept_stale, has_readers=bool(settings.readers))


def _absent(letter: Row[Any]) -> tuple[str, ...]:
    """Those of the properties `message_id` and `type` that it came without."""
    return tuple(name for name in ("message_id", "type") if not getattr(letter, name))


def _is_message(letter: Row[Any]) -> bool:
    """Whether it is the whole message. In a malformed one with an id and a type, some value was cut or left out."""
    if letter.reason == "malformed" or not letter.message_id or not letter.type:
        return False
    texts = {name: getattr(letter, name) for name in TEXTS if name != "queue"}
    try:
        Message(texts.pop("message_id"), payload=b"", **texts)
    except EncodeError:
        return False
    return True
