"""Which dead letters a replay refuses, and why. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row

from outboxkit import window
from outboxkit.errors import EncodeError
from outboxkit.message import NAME_LIMIT, Message

_ENVELOPE = ("key", "topic", "correlation_id", "causation_id", "content_type", "content_encoding")


class Refusal(StrEnum):
    """Why a dead letter is left as it is."""

    TAKEN = "taken"
    NO_PLACE = "no place"
    MALFORMED = "malformed"
    NO_QUEUE = "no queue"
    STALE = "stale"

    @property
    def plain(self) -> str:
        """The reason, and what to do about it."""
        return _PLAIN[self]


_PLAIN = {
    Refusal.TAKEN: "its place in the outbox is taken; the same message may wait there already: compare it with "
    "`outboxkit dead show`, and discard what is double",
    Refusal.NO_PLACE: "no place in the outbox is known for it; it can be discarded",
    Refusal.MALFORMED: "it has no id or no type, or something that no message can hold: its producer must send it "
    "anew, and it can be discarded",
    Refusal.NO_QUEUE: "no queue is known to send it back to; it can be discarded",
    Refusal.STALE: "older than the inbox is sure to remember: nothing proves that it was not handled, and a replay "
    "may do its work twice. Find out; then add --accept-stale, or discard it",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """When a dead letter of the inbox may go back to its queue.

    Attributes:
        retention: how long the inbox remembers, as the consumers have it.
        skew: how far clocks may be apart, as the consumers have it.
        accept_stale: also those that are too old to be proven new; they are dated anew.
    """

    retention: timedelta = timedelta(days=14)
    skew: timedelta = timedelta(minutes=5)
    accept_stale: bool = False

    def refusal(self, letter: Row[Any], now: datetime) -> Refusal | None:
        """Why this dead letter cannot be replayed; None where it can. Its place in the outbox is not looked at."""
        if letter.side == "outbox":
            return Refusal.NO_PLACE if letter.position is None else None
        if not _is_message(letter):
            return Refusal.MALFORMED
        if not letter.queue or len(letter.queue.encode()) > NAME_LIMIT:
            return Refusal.NO_QUEUE
        return Refusal.STALE if self.is_stale(letter, now) and not self.accept_stale else None

    def is_stale(self, letter: Row[Any], now: datetime) -> bool:
        """Whether a consumer would find it stale; what was stale once stays so, whatever is remembered now."""
        made = window.message_time(letter.message_id or "", letter.created_at)
        return letter.reason == "stale" or window.is_too_old(made, now=now, retention=self.retention, skew=self.skew)


def _is_message(letter: Row[Any]) -> bool:
    """Whether all of it is as it came; of a malformed one that had an id and a type, something was cut or left out."""
    if letter.reason == "malformed" or not letter.message_id or not letter.type:
        return False
    try:
        Message(letter.message_id, letter.type, b"", **{name: getattr(letter, name) for name in _ENVELOPE})
    except EncodeError:
        return False
    return True
