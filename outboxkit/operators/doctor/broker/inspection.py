"""Inspection of a RabbitMQ node over AMQP. It publishes nothing, consumes nothing and changes nothing.

A passive declaration tells whether something is there. A declaration of what is there tells whether it is as expected.
The broker closes the channel of each one that it refuses, so each has a channel of its own.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import aio_pika
import aiormq
from pamqp.common import FieldTable

from outboxkit.brokers.rabbitmq import connection
from outboxkit.errors import BrokerRefused, BrokerUnavailable
from outboxkit.errors.failures import printable
from outboxkit.runtime import urls

T = TypeVar("T")
NAME = "outboxkit doctor"


class Obstacle(Enum):
    """A reason for which a broker cannot be used: nobody answers, or it lets this user not in."""

    AWAY = "away"
    CERTIFICATE = "certificate"
    LOGIN = "login"
    VHOST = "vhost"
    ACCESS = "access"


class Denied(Enum):
    """A reason for which a declaration was refused."""

    MISSING = "missing"
    DIFFERENT = "different"
    FORBIDDEN = "forbidden"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """The refusal of a connection or of a declaration.

    Attributes:
        kind: the reason, as far as it can be told.
        reason: the broker's own words, or those of the network.
    """

    kind: Obstacle | Denied
    reason: str


@dataclass(frozen=True, slots=True)
class Depth:
    """The length of a queue.

    Attributes:
        messages: the number of ready messages.
        consumers: the number of its consumers.
    """

    messages: int
    consumers: int


class Inspection:
    """An open connection to one node, and the questions that can be asked over it.

    Attributes:
        version: of the server.
        product: its name, such as `RabbitMQ`.
    """

    def __init__(self, opened: aio_pika.abc.AbstractConnection, wire: aiormq.Connection, timeout: float) -> None:
        self._opened, self._timeout = opened, timeout
        self.version = _text(wire.server_properties.get("version"))
        self.product = _text(wire.server_properties.get("product"))

    async def queue(self, name: str) -> Depth | BrokerRefusal:
        """The length of a queue, or why it cannot be told.

        Raises:
            BrokerUnavailable: the connection was lost, or there was no answer in time.
        """

        async def ask(channel: aiormq.abc.AbstractChannel) -> Depth:
            answer = await channel.queue_declare(name, passive=True, timeout=self._timeout)
            return Depth(answer.message_count or 0, answer.consumer_count or 0)

        return await self._ask(f"queue {name!r}", ask)

    async def difference(self, name: str, arguments: FieldTable) -> BrokerRefusal | None:
        """The difference of a queue that is there from a durable one with these arguments; None if there is none.

        Raises:
            BrokerUnavailable: the connection was lost, or there was no answer in time.
        """

        async def ask(channel: aiormq.abc.AbstractChannel) -> None:
            await channel.queue_declare(name, durable=True, arguments=arguments, timeout=self._timeout)

        return await self._ask(f"queue {name!r}", ask)

    async def exchange(self, name: str) -> BrokerRefusal | None:
        """The reason why there is no durable topic exchange of this name; None if there is one.

        Raises:
            BrokerUnavailable: the connection was lost, or there was no answer in time.
        """

        async def look(channel: aiormq.abc.AbstractChannel) -> None:
            await channel.exchange_declare(name, passive=True, timeout=self._timeout)

        async def compare(channel: aiormq.abc.AbstractChannel) -> None:
            await channel.exchange_declare(name, exchange_type="topic", durable=True, timeout=self._timeout)

        return await self._ask(f"exchange {name!r}", look) or await self._ask(f"exchange {name!r}", compare)

    async def _ask(self, what: str, ask: Callable[[aiormq.abc.AbstractChannel], Awaitable[T]]) -> T | BrokerRefusal:
        """The answer on a channel of its own, or the refusal."""
        try:
            with connection.convert_errors(f"cannot look at {what}"):
                channel = await self._opened.channel(publisher_confirms=False)
                answer = await ask(await channel.get_underlay_channel())
                await channel.close()
                return answer
        except BrokerUnavailable as error:
            cause = error.__cause__
            if not isinstance(cause, aiormq.exceptions.AMQPChannelError):
                raise
            return BrokerRefusal(_denied(cause), printable(connection.describe(cause)))


@asynccontextmanager
async def inspect(url: str, *, timeout: float) -> AsyncIterator[Inspection | BrokerRefusal]:
    """The inspection of the node at this URL, or why there is none. Each step has `timeout` seconds.

    Raises:
        ConfigurationError: it is not an AMQP URL.
    """
    opened = None
    try:
        opened = await connection.connect(url, name=NAME, timeout=timeout)
    except BrokerUnavailable as error:
        reason = str(error).removeprefix(f"cannot connect to {urls.shown(url)}: ")
        refusal = BrokerRefusal(_obstacle(error), printable(reason))
    if opened is None:
        yield refusal
        return
    try:
        transport = opened.transport
        assert transport is not None  # noqa: S101 - it is set while the connection is open
        yield Inspection(opened, transport.connection, timeout)  # type: ignore[arg-type]
    finally:
        await connection.close(opened)


def _obstacle(error: BrokerUnavailable) -> Obstacle:
    if isinstance(error, BrokerRefused):
        return Obstacle.CERTIFICATE if error.kind == "file" else Obstacle(error.kind)
    cause = error.__cause__
    is_tls = cause is not None and isinstance(cause.__cause__ or cause, ssl.SSLError)
    return Obstacle.CERTIFICATE if is_tls else Obstacle.AWAY


def _denied(cause: aiormq.exceptions.AMQPChannelError) -> Denied:
    if isinstance(cause, aiormq.exceptions.ChannelNotFoundEntity):
        return Denied.MISSING if "no queue" in str(cause) or "no exchange" in str(cause) else Denied.BROKEN
    if isinstance(cause, aiormq.exceptions.ChannelAccessRefused):
        return Denied.FORBIDDEN
    if isinstance(cause, aiormq.exceptions.ChannelPreconditionFailed):
        return Denied.DIFFERENT
    return Denied.BROKEN


def _text(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value or "")
    return printable(text, 100)
