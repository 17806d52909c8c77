"""The message in a delivery, by readers of foreign envelopes, and by the broker's own reader last."""

from collections.abc import Sequence
from dataclasses import replace

from outboxkit.brokers import Delivery
from outboxkit.codec.envelopes import Envelope, Reader
from outboxkit.codec.envelopes.envelope import Malformed, read_with
from outboxkit.codec.payloads import LARGE
from outboxkit.compression import INFLATED_LIMIT, deflate
from outboxkit.errors import DecodeError
from outboxkit.errors.failures import printable
from outboxkit.message import Message


def message_in(delivery: Delivery, readers: Sequence[Reader], *, limit: int = INFLATED_LIMIT) -> Message | Malformed:
    """The message of the first reader that knows the envelope; the delivery's own if none does.

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
