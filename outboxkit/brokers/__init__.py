"""Protocols of a broker: a `Publisher` for the relay and a `Subscriber` for the consumer.

A new broker is one module that inherits from both of them and passes the suite in `outboxkit.testing.conformance`. It
converts its driver's errors into `BrokerUnavailable` or receipts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from outboxkit.codec.compression import INFLATED_LIMIT, deflate
from outboxkit.codec.envelopes.envelope import Envelope, Malformed, Reader, read_with
from outboxkit.codec.headers import DeliveryHeaders, without_own
from outboxkit.codec.payloads import LARGE
from outboxkit.errors import DecodeError, EncodeError
from outboxkit.errors.failures import printable
from outboxkit.message import Message


class Verdict(StrEnum):
    """The broker's verdict on one published message. `Receipt` explains the values."""

    CONFIRMED = "confirmed"
    UNROUTABLE = "unroutable"
    REJECTED = "rejected"
    POSTPONED = "postponed"
    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The broker's or destination's answer for one message.

    * `CONFIRMED`: the message is safe in a queue, or the destination has accepted it.
    * `UNROUTABLE`, `REJECTED`: the message itself has failed.
    * `NOT_SENT`: an earlier message of its key has failed, its key goes on in a later batch, or the time was up.
    * `POSTPONED`: a queue accepts nothing at the moment, or the destination asks for a later attempt. No attempt is
      counted.
    * `UNKNOWN`: no answer came, so the message may or may not have arrived. No attempt is counted.

    A `CONFIRMED` receipt with a reason means that the destination's answer could not be kept: it was too long, for
    example. If the event asks for a reply, the message becomes a dead letter with that reason. Without answer and
    reason the answer was empty.

    Attributes:
        reason: why the message was not confirmed, or why the answer to a confirmed one could not be kept.
        after: the wait before the next attempt, such as a destination asks for; None: the relay's backoff.
        final: a `REJECTED` message becomes a dead letter at once, because another attempt would not help.
        answer: the destination's answer to a confirmed message, whether its event asks for a reply or not.
    """

    verdict: Verdict
    reason: str | None = None
    after: timedelta | None = None
    final: bool = False
    answer: "Answer | None" = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a destination's answer to a message."""

    payload: bytes
    content_type: str = "application/json"


CONFIRMED = Receipt(Verdict.CONFIRMED)
LONGEST_WAIT = timedelta(hours=1)
"""The longest wait before the next attempt that a destination, or a handler in the relay's process, can ask for."""


def arriving(message: Message) -> Message | Receipt:
    """The message as it arrives without a broker between; a receipt if its row was not written by outboxkit."""
    try:
        return replace(message, headers=without_own(message.headers), queue=None)
    except EncodeError as error:
        return Receipt(Verdict.REJECTED, printable(str(error)), final=True)


class KeyGate:
    """The keys of one batch of which a message has failed: their later messages are not sent.

    Messages without a key always pass.
    """

    def __init__(self) -> None:
        self._failed_at: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._failed_at)

    def fail(self, index: int, message: Message) -> None:
        """Note that this message has failed: those of its key with a higher index in the batch do not pass."""
        if message.key is not None:
            self._failed_at[message.key] = min(index, self._failed_at.get(message.key, index))

    def refuse(self, index: int, message: Message) -> Receipt | None:
        """The receipt of a message that must not be sent, behind a failed one of its key; None: it may be sent."""
        if message.key is None or index <= self._failed_at.get(message.key, index):
            return None
        return Receipt(Verdict.NOT_SENT, f"an earlier message of key {message.key!r} has failed")


SYSTEMS = {"amqp": "rabbitmq", "amqps": "rabbitmq", "https": "http"}


class Broker(Protocol):
    """The description of a publisher or a subscriber. A class that inherits has the defaults.

    Attributes:
        exchange: the exchange that it uses; None: there is none.
        peer: its name in the log if it cannot be reached: `broker`, `destination`, or the `database` of handlers.
    """

    exchange: str | None = None
    peer: str = "broker"

    @property
    def address(self) -> str:
        """Its URL without user and password, for the log; by default the name of its class."""
        return type(self).__name__

    @property
    def system(self) -> str:
        """The messaging system, as telemetry calls it: `rabbitmq`, or the scheme of its address, or `none`."""
        scheme, separator, _ = self.address.partition("://")
        return SYSTEMS.get(scheme, scheme) if separator else "none"

    @property
    def trouble(self) -> str | None:
        """The reason for which it cannot be used now; None, as by default: it can. Any thread may read it."""
        return None


class Publisher(Broker, Protocol):
    """The relay's side of a broker: it publishes batches of messages.

    Attributes:
        slow: whether a batch may take seconds, or it writes to the database itself. On SQLite, the only lock is that of
            the whole database. The relay then does not hold it while it publishes. More than two relays work off a
            backlog together only if it is slow.
        batch_limit: the maximum number of rows to claim at once; None: the relay's own. Rows wait for the whole batch
            that they are in. One that is sent slowly should leave most rows to others.
        queue: the one queue that it publishes to; None: any.
    """

    queue: str | None = None
    slow: bool = False
    batch_limit: int | None = None

    async def connect(self) -> None:
        """Make the publisher ready. Does nothing if it is ready already.

        Raises:
            BrokerUnavailable: the broker cannot be reached now.
        """

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish every message persistently. Returns their receipts, in the order of the batch.

        Messages of one key are sent in the order of the batch. After a failure, those of its key that were not sent yet
        are `NOT_SENT`. If the broker closes the channel or the connection because of a message, that message alone is
        `REJECTED`.

        Returns within the publisher's time limit. A message without an answer is `UNKNOWN`. It is `REJECTED` if each
        message is a request of its own and the destination has answered other requests of the batch.

        Raises:
            BrokerUnavailable: the connection was lost before; no message was published.
        """

    async def close(self) -> None:
        """Disconnect. Raises nothing if the broker is away."""


class Delivery(Protocol):
    """One arrival of a message. The consumer calls one of `ack`, `requeue`, `retry` and `requeue_fresh`, once.

    Each raises `BrokerUnavailable` if the connection is lost. The broker then delivers the message again.
    """

    @property
    def message(self) -> Message | Malformed:
        """The message, without the delivery headers."""

    @property
    def envelope(self) -> Envelope:
        """The delivery as its publisher sent it, for readers of foreign envelopes."""

    @property
    def delivery_headers(self) -> DeliveryHeaders:
        """The reserved headers about this delivery: attempt, first failure, handlers to run."""

    @property
    def redeliveries(self) -> int:
        """The number of earlier deliveries of this message that were not acked, as the broker counts them.

        A message that kills its consumer is redelivered, and so is everything that was prefetched with it.
        """

    @property
    def dropped(self) -> bool:
        """Whether the broker dropped it from its queue by a limit of its own. It then becomes a dead letter."""

    async def ack(self) -> None:
        """Tell the broker to forget the message. Several acks may be sent as one."""

    async def requeue(self) -> None:
        """Put the message back unhandled. It is redelivered at once, to any consumer, as the same attempt."""

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        """Redeliver the message later, as the next attempt. Returns the delay, which is one of the retry delays.

        Args:
            after: use the retry delay nearest to this one; None: the delay follows from the number of attempts.
            handlers: names of the handlers to run; none: the same as in this attempt.
        """

    async def requeue_fresh(self) -> None:
        """Put a copy at the end of the queue, as the same attempt with 0 redeliveries, and ack this one.

        For a message that is redelivered so often, without a fault of its own, that the broker would drop it.
        """


def message_in(delivery: Delivery, readers: Sequence[Reader], *, limit: int = INFLATED_LIMIT) -> Message | Malformed:
    """The message in a delivery: of the first reader that knows its envelope; the delivery's own if none does.

    It is `Malformed` if a reader knows the envelope and cannot read it. So it is if none knows it, nor outboxkit.

    Args:
        delivery: a delivery of any broker.
        readers: they are asked in this order.
        limit: the maximum bytes of an envelope once it is inflated.
    """
    envelope = replace(delivery.envelope, limit=limit)
    try:
        message = read_with(tuple(readers), envelope)
    except DecodeError as error:
        return Malformed.of(envelope, printable(str(error)), kind="undecodable")
    return delivery.message if message is None else _as_small_as_it_came(message, envelope)


def _as_small_as_it_came(message: Message, envelope: Envelope) -> Message:
    """The message. A large payload that was inflated is compressed again: it may wait long for its handler."""
    payload = message.payload
    if len(payload) <= max(LARGE, 2 * len(envelope.body)):
        return message
    return replace(message, payload=deflate(payload, "gzip"), content_encoding="gzip")


class Subscriber(Broker, Protocol):
    """The consumer's side of a broker: it receives the messages of one queue.

    Attributes:
        delays: the retry delays, ascending, as far as they are known.
    """

    delays: Sequence[timedelta] = ()

    async def connect(self) -> None:
        """Declare the queue and its bindings, and make the subscriber ready. Does nothing if it is ready already.

        Raises:
            BrokerUnavailable: the broker cannot be reached now.
            ConfigurationError: the queue exists and is of another kind.
        """

    async def start_receiving(self) -> None:
        """Consume the queue, so that the broker pushes deliveries. Does nothing if it is consumed already.

        Raises:
            BrokerRefused: this user may not read the queue.
            BrokerUnavailable: the connection was lost.
        """

    async def receive(self, *, wait: bool = True) -> Delivery | None:
        """The next delivery; starts receiving if need be. With `wait=False` it is None if the queue is empty.

        Raises:
            BrokerUnavailable: the connection was lost. The broker redelivers the unacked messages.
        """

    async def stop_receiving(self) -> None:
        """Receive no more deliveries. Earlier ones can still be acked. To receive again, `close` and `connect`.

        Raises:
            BrokerUnavailable: the connection was lost.
        """

    async def waiting_retries(self) -> int:
        """The number of messages that this subscriber has put off and not received again. Needs no connection."""

    async def lengths(self) -> Mapping[str, int]:
        """The number of ready messages of its queue and of those beside it, by name; none, as by default: not known.

        Raises:
            BrokerUnavailable: the connection was lost.
        """
        return {}

    async def close(self) -> None:
        """Disconnect. Unacked messages go back to the queue. Raises nothing if the broker is away."""
