"""Reserved headers about a delivery, which every broker reads and writes alike. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from outboxkit.codec.headers import ABSENT, ACCEPTED, ATTEMPT, FIRST_FAILED, HANDLERS, OWN, REPLAYED
from outboxkit.message import is_storable_name

MOST_ATTEMPTS = 1_000_000
"""The most that is read from a header: the number must fit into a column, with those that are still to come."""
MOST_HANDLERS = 1_000
"""The most handler names that are read. No consumer has so many handlers of one type."""
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
"""The latest time that is read. A later one cannot be represented in every time zone."""

_NAMES = frozenset((ATTEMPT, FIRST_FAILED, HANDLERS, ACCEPTED, ABSENT, REPLAYED))
_ABSENT = ("message_id", "type")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DeliveryHeaders:
    """The reserved headers of one delivery.

    Attributes:
        attempt: 1 for the first delivery, and one more after each retry.
        first_failed_at: when its first attempt failed.
        handlers: the names of the handlers to run; if empty, all of them.
        accepted_at: when an operator accepted it although it is stale.
        absent: on a replay of a dead letter that was not a message, the properties that its publisher did not send:
            `message_id`, `type` or both. They hold stand-ins, because a replay goes through the outbox.
        replayed: whether an operator had it delivered again.
    """

    attempt: int = 1
    first_failed_at: datetime | None = None
    handlers: tuple[str, ...] = ()
    accepted_at: datetime | None = None
    absent: tuple[str, ...] = ()
    replayed: bool = False

    def next_attempt(self, *, now: datetime, handlers: tuple[str, ...] = ()) -> "DeliveryHeaders":
        """The headers of the next attempt, for these handlers; if none are given, for the same ones."""
        return replace(
            self,
            attempt=self.attempt + 1,
            first_failed_at=self.first_failed_at or now,
            handlers=handlers or self.handlers,
        )

    def headers(self) -> dict[str, Any]:
        """The headers to write; an attribute with its default value has none."""
        headers: dict[str, Any] = {}
        if self.attempt > 1:
            headers[ATTEMPT] = self.attempt
        if self.first_failed_at is not None:
            headers[FIRST_FAILED] = _milliseconds(self.first_failed_at)
        if self.handlers:
            headers[HANDLERS] = list(self.handlers)
        if self.accepted_at is not None:
            headers[ACCEPTED] = _milliseconds(self.accepted_at)
        if self.absent:
            headers[ABSENT] = list(self.absent)
        if self.replayed:
            headers[REPLAYED] = True
        return headers


FRESH = DeliveryHeaders()


def read_delivery_headers(headers: Mapping[str, Any]) -> DeliveryHeaders:
    """The delivery headers among these headers. An invalid value, from a foreign client, is ignored."""
    if _NAMES.isdisjoint(headers):
        return FRESH
    return DeliveryHeaders(
        attempt=_attempt(headers.get(ATTEMPT)),
        first_failed_at=_moment(headers.get(FIRST_FAILED)),
        handlers=_names(headers.get(HANDLERS)),
        accepted_at=_moment(headers.get(ACCEPTED)),
        absent=tuple(name for name in _ABSENT if name in _names(headers.get(ABSENT))),
        replayed=headers.get(REPLAYED) is True,
    )


def without(headers: Mapping[str, Any]) -> dict[str, Any]:
    """These headers without the reserved ones."""
    return {name: value for name, value in headers.items() if not name.startswith(OWN)}


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _attempt(value: object) -> int:
    return min(max(value, 1), MOST_ATTEMPTS) if type(value) is int else 1


def _names(value: object) -> tuple[str, ...]:
    """The values that can be the name of a handler, each once."""
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
