"""What outboxkit notes on a message on its way: reserved headers, which every broker reads and writes alike. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from outboxkit.message import is_storable_name

OWN = "outboxkit-"
"""How the name of every reserved header begins; no user's header does."""
ATTEMPT, FIRST_FAILED = "outboxkit-attempt", "outboxkit-first-failed-at"
HANDLERS, ACCEPTED = "outboxkit-handlers", "outboxkit-accepted-at"
QUEUE = "outboxkit-queue"
"""On a message that is to be published to this queue alone, past every binding. It is not sent."""

MOST_ATTEMPTS = 1_000_000
"""A message that claims more of them has had that many: it must fit into a column, with those still to come."""
MOST_HANDLERS = 1_000
"""Names that are read; a consumer has not so many handlers of one type."""
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
"""The last moment that is read as one: a later one cannot be shown in every time zone."""

_MARKS = frozenset((ATTEMPT, FIRST_FAILED, HANDLERS, ACCEPTED))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DeliveryHeaders:
    """What is noted on one message.

    Attributes:
        attempt: 1 at first, one more after each retry.
        first_failed_at: when its first attempt failed.
        handlers: the names of those that are still to run; all where it is empty.
        accepted_at: when an operator said that it is to be handled although it is stale.
    """

    attempt: int = 1
    first_failed_at: datetime | None = None
    handlers: tuple[str, ...] = ()
    accepted_at: datetime | None = None

    def next_attempt(self, *, now: datetime, handlers: tuple[str, ...] = ()) -> "DeliveryHeaders":
        """The same with one attempt more, for these handlers; all that it was for where there are none."""
        return replace(
            self,
            attempt=self.attempt + 1,
            first_failed_at=self.first_failed_at or now,
            handlers=handlers or self.handlers,
        )

    def headers(self) -> dict[str, Any]:
        """As reserved headers; nothing for what is as at the beginning."""
        written: dict[str, Any] = {}
        if self.attempt > 1:
            written[ATTEMPT] = self.attempt
        if self.first_failed_at is not None:
            written[FIRST_FAILED] = _milliseconds(self.first_failed_at)
        if self.handlers:
            written[HANDLERS] = list(self.handlers)
        if self.accepted_at is not None:
            written[ACCEPTED] = _milliseconds(self.accepted_at)
        return written


FRESH = DeliveryHeaders()


def read(headers: Mapping[str, Any]) -> DeliveryHeaders:
    """The marks among these headers. Whatever a foreign client has written there, it is no error: it is not a mark."""
    if _MARKS.isdisjoint(headers):
        return FRESH
    return DeliveryHeaders(
        attempt=_attempt(headers.get(ATTEMPT)),
        first_failed_at=_moment(headers.get(FIRST_FAILED)),
        handlers=_names(headers.get(HANDLERS)),
        accepted_at=_moment(headers.get(ACCEPTED)),
    )


def addressed_to(headers: Mapping[str, Any]) -> str | None:
    """The queue that a message with these headers is for, past every binding; None: for whoever is bound."""
    queue = headers.get(QUEUE)
    return queue if isinstance(queue, str) else None


def without(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that are not reserved."""
    return {name: value for name, value in headers.items() if not name.startswith(OWN)}


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _attempt(value: object) -> int:
    return min(max(value, 1), MOST_ATTEMPTS) if type(value) is int else 1


def _names(value: object) -> tuple[str, ...]:
    """Those that can be a handler's name, each once."""
    if not isinstance(value, list):
        return ()
    names = dict.fromkeys(name for name in value if isinstance(name, str) and is_storable_name(name))
    return tuple(names)[:MOST_HANDLERS]


def _moment(value: object) -> datetime | None:
    if type(value) is not int:
        return None
    try:
        moment = _EPOCH + value * _MILLISECOND
    except OverflowError:
        return None
    return moment if _EPOCH <= moment <= LATEST else None
