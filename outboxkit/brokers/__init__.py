"""What outboxkit asks of a broker: a `Publisher` for the relay and a `Subscriber` for the consumer.

Who writes another broker implements these two protocols in one module and runs the suite in
`outboxkit.testing.conformance`. Errors of the driver end here: they become `BrokerUnavailable`, or a receipt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.message import Message


class Verdict(StrEnum):
    """What a broker said of one published message."""

    CONFIRMED = "confirmed"
    UNROUTABLE = "unroutable"
    REJECTED = "rejected"
    POSTPONED = "postponed"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The broker's answer for one message, with its reason where it is no confirm.

    Only `CONFIRMED` means that the message is in a queue, on disk where the broker has disks, or that a destination
    said yes to it. `UNROUTABLE` and `REJECTED` are the message's own failure. `NOT_SENT` means that it was not sent: an
    earlier message of its key in the same batch has failed, its key is published with such care that the rest comes
    with a later batch, or there was no time left. `POSTPONED` means that the other end asked to come again later, or
    that a queue takes nothing at the moment: no attempt is counted. `UNKNOWN` means that no answer came: the message
    may or may not have arrived, and nobody is to blame.

    A `CONFIRMED` with a reason was answered with something that could not be kept, such as a body over the limit: the
    call was made, and whoever wants a reply to it must bury the message with that reason. A `CONFIRMED` with neither
    answer nor reason was answered with an empty body.

    Attributes:
        verdict: one of these.
        reason: why, where it is no confirm; of a confirm: why its answer could not be kept.
        after: how long the other end asked to wait before the next attempt; None: as the relay's backoff says.
        final: of a `REJECTED` message: another attempt would not help, it is dead at once.
        answer: the body with which the other end has confirmed the message, where it has one. A publisher does not know
            whether its event asks for a reply.
    """

    verdict: Verdict
    reason: str | None = None
    after: timedelta | None = None
    final: bool = False
    answer: "Answer | None" = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The body with which a destination has answered a message.

    Attributes:
        payload: the bytes.
        content_type: their MIME type.
    """

    payload: bytes
    content_type: str = "application/json"


CONFIRMED = Receipt(Verdict.CONFIRMED)


class Publisher(Protocol):
    """The relay's side of a broker."""

    async def connect(self) -> None:
        """Be ready to publish; do nothing where it already is.

        Raises:
            BrokerUnavailable: the broker cannot be reached now.
        """

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish every message persistently, and answer for each, in the order of the batch.

        Messages of one key leave in the order of the batch. Once one of them is known to have failed, those of its
        key that have not left yet are `NOT_SENT`. A message at which the broker closes the channel or the connection is
        found, and is the only one that is `REJECTED` for it.

        Returns within the publisher's time limit: what was not answered by then is `UNKNOWN`, or `REJECTED` where the
        other end has answered for other messages of the batch and each message is a request of its own.

        Raises:
            BrokerUnavailable: the connection was already lost, nothing was published.
        """

    async def close(self) -> None:
        """Disconnect. Never raises for a broker that is gone."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """What arrived without being a message: no id, no type, or a limit broken. Kept as it came, with the reason."""

    reason: str
    payload: bytes
    message_id: str | None = None
    type: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict)
    content_type: str | None = None
    correlation_id: str | None = None


class Delivery(Protocol):
    """One arrival of a message. Exactly one of `ack`, `requeue`, `retry` and `requeue_fresh` is called, once.

    Each raises `BrokerUnavailable` where the broker went away: it will then deliver the message again.
    """

    @property
    def message(self) -> Message | Malformed:
        """What arrived, without the marks."""

    @property
    def marks(self) -> DeliveryHeaders:
        """What was noted on it: attempt, first failure, the handlers that are still to run."""

    @property
    def returned(self) -> int:
        """How often it has come back to the queue unsettled, as the broker counts; 0 for the first arrival.

        A message that killed its consumer comes back, and so does everything that was prefetched with it.
        """

    @property
    def dropped(self) -> bool:
        """Whether the broker took it out of its queue by a limit of its own: it belongs among the dead letters."""

    async def ack(self) -> None:
        """It is done: the broker may forget it. Acks of one moment may travel as one."""

    async def requeue(self) -> None:
        """Give it back unhandled: it comes again at once, to any consumer, as the same attempt."""

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Have it come again later as the next attempt, for these handlers; returns the delay, a step of the ladder.

        The step is chosen by the number of attempts, or nearest to `after`. No handler named: all that it was for.
        """

    async def requeue_fresh(self) -> None:
        """Put a copy at the end of the queue, as the same attempt, and forget this one: it has returned 0 times then.

        For a message that came back so often, without a fault of its own, that the broker may soon drop it.
        """


class Subscriber(Protocol):
    """The consumer's side of a broker: one queue."""

    async def connect(self) -> None:
        """Be ready to receive, with the queue and its bindings declared; do nothing where it already is.

        Raises:
            BrokerUnavailable: the broker cannot be reached now.
            ConfigurationError: the queue exists and is of another kind.
        """

    async def receive(self, *, wait: bool = True) -> Delivery | None:
        """The next delivery. With `wait=False` it is None where the queue is empty.

        Raises:
            BrokerUnavailable: the connection was lost; what was not acked will be delivered again.
        """

    async def stop_receiving(self) -> None:
        """Take no more deliveries; those that were taken can still be settled. `connect` after `close` begins anew.

        Raises:
            BrokerUnavailable: the broker went away.
        """

    async def postponed(self) -> int:
        """How many messages of this queue wait for a later attempt.

        Raises:
            BrokerUnavailable: the broker cannot be asked now.
        """

    async def close(self) -> None:
        """Disconnect; what is not acked goes back to the queue. Never raises for a broker that is gone."""


def address_of(broker: object) -> str:
    """Where a publisher or subscriber leads, for the log: its `address`, or the name of its class if it has none."""
    return str(getattr(broker, "address", type(broker).__name__))


def is_slow(publisher: Publisher) -> bool:
    """Whether it says of itself, as `slow = True`, that a batch may take seconds, or that it writes to a database.

    The rows of a batch are not to be locked meanwhile where that would keep everybody else out: on SQLite.
    """
    return bool(getattr(publisher, "slow", False))


DEFAULT_LADDER = (timedelta(seconds=1), timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))
"""The default for `OUTBOXKIT_RETRY_LADDER`."""
