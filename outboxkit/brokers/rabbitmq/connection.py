"""One connection to RabbitMQ: opened with a limit, named, and its errors converted once."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol
from urllib.parse import unquote

import aio_pika
import aiormq
from aio_pika.exceptions import CONNECTION_EXCEPTIONS
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from outboxkit import urls
from outboxkit.brokers.rabbitmq.taps import HEARTBEAT
from outboxkit.errors import BrokerUnavailable, ConfigurationError

HEARTBEAT_SECONDS = 20
"""Asked of the broker where the URL says nothing: a peer that is silent for two is gone (AMQP 0-9-1, 4.2.7)."""

_NEVER_ALLOWED = ("reserved prefix", "default exchange")
"""What RabbitMQ says of names that nobody may declare, whatever the permissions."""

SIGN_OF_LIFE_SECONDS = 1.0
"""How often the client is told that the broker lives, where it does not see what arrives."""

AWAY = (*CONNECTION_EXCEPTIONS, TimeoutError, asyncio.InvalidStateError)
"""What aio-pika and the network raise where a broker is not there, or no longer."""


OnWriter = Callable[[asyncio.StreamWriter, Callable[[], None]], None]
"""Gets where to write, and what tells the client that the broker lives."""


class Tap(Protocol):
    """Who comes first to what arrives on a connection."""

    def feed(self, arrived: bytes) -> bytes:
        """Take what is its own; returns what is for the client library, in whole frames."""


class Addresses:
    """The URLs of a broker's nodes, in an order of their own: not all workers sit on the first node.

    Args:
        url: one, or several with commas.
        shuffle: finds the order, once.

    Attributes:
        urls: in this order.
    """

    def __init__(self, url: str, *, shuffle: Callable[[list[str]], None] = random.shuffle) -> None:
        self.urls = list(dict.fromkeys(map(str.strip, url.split(","))))
        shuffle(self.urls)
        self._next = 0

    def in_turn(self) -> Iterator[str]:
        """Each once, beginning behind the one that was last tried: it was lost, or did not answer."""
        for _ in range(len(self.urls)):
            url = self.urls[self._next]
            self._next = (self._next + 1) % len(self.urls)
            yield url


async def connect(
    url: str | Addresses,
    *,
    name: str,
    timeout: float,
    heartbeat: int = HEARTBEAT_SECONDS,
    on_lost: Callable[[str], None] | None = None,
    tap: Tap | None = None,
    on_writer: OnWriter | None = None,
) -> aio_pika.abc.AbstractConnection:
    """Open a connection, shown under `name` in RabbitMQ's own listings; `on_lost` hears why it closed.

    Of several URLs, separated by commas, each is tried in turn; of `Addresses` the next ones. The broker is asked for a
    heartbeat every so many seconds if the URL does not say how many. If a `tap` is given, it comes first to what
    arrives. `on_writer` gets what it may write whole frames to, between those of the client, and what tells the client
    that the broker lives.

    Raises:
        BrokerUnavailable: refused, no such vhost, wrong password, or no answer within `timeout` seconds.
        ConfigurationError: a URL is no AMQP URL.
    """
    addresses = url if isinstance(url, Addresses) else Addresses(url)
    targets = {each: _parse(each, heartbeat) for each in addresses.urls}
    failures: list[BrokerUnavailable] = []
    for each in addresses.in_turn():
        target = targets[each]
        try:
            with converted(f"cannot connect to {shown(each)}"):
                connection = aio_pika.Connection(target, client_properties={"connection_name": name})
                if tap is not None:
                    connection.kwargs["transport_factory"] = Tapped(target.scheme, tap, on_writer)
                await connection.connect(timeout=timeout / len(targets))
        except BrokerUnavailable as error:
            failures.append(error)
            continue
        if on_lost is not None:
            connection.close_callbacks.add(lambda _, error: on_lost(describe(error)))
        return connection
    raise BrokerUnavailable("; ".join(map(str, failures))) from failures[-1].__cause__


class Tapped(TransportFactory):
    """Makes the client's own transports, and lets a tap take out of what arrives on them.

    The client sees a heartbeat instead where nothing is left for it: what was taken is a sign of life, too.
    """

    def __init__(self, scheme: str, tap: Tap, on_writer: OnWriter | None = None) -> None:
        self._transports = TLSTransportFactory() if scheme == "amqps" else TCPTransportFactory()
        self._tap = tap
        self._on_writer = on_writer

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A reader that is fed what is left, and a writer."""
        reader, writer = await self._transports.create(url, **options)
        feed, clock = reader.feed_data, asyncio.get_running_loop().time
        last = clock()

        def feed_the_rest(arrived: bytes) -> None:
            nonlocal last
            rest = self._tap.feed(arrived)
            if not rest and clock() - last > SIGN_OF_LIFE_SECONDS:
                rest = HEARTBEAT
            if rest:
                last = clock()
                feed(rest)

        reader.feed_data = feed_the_rest  # type: ignore[method-assign,assignment]
        if self._on_writer is not None:
            self._on_writer(writer, partial(feed, HEARTBEAT))
        return reader, writer


async def open_channel(
    connection: aio_pika.abc.AbstractConnection, *, on_lost: Callable[[str], None] | None = None
) -> tuple[aio_pika.abc.AbstractChannel, aiormq.abc.AbstractChannel]:
    """A channel with publisher confirms, and the wire-level channel below it, whose calls are the fast ones."""
    with converted("cannot open a channel"):
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        if on_lost is not None:
            channel.close_callbacks.add(lambda _, error: on_lost(describe(error)))
        return channel, await channel.get_underlay_channel()


async def declare_exchange(
    channel: aio_pika.abc.AbstractChannel, name: str, *, timeout: float | None = None
) -> aio_pika.abc.AbstractExchange:
    """Declare the durable topic exchange of this name.

    Raises:
        ConfigurationError: it is there and is of another kind, or nobody may have one of that name.
    """
    try:
        return await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True, timeout=timeout)
    except (*AWAY, ValueError) as error:
        if not is_for_good(error):
            raise
        raise ConfigurationError(
            f"OUTBOXKIT_EXCHANGE is {name!r}, and no durable topic exchange can be declared: {describe(error)}. Choose "
            "another name, or delete that exchange if nobody else uses it"
        ) from error


def is_for_good(error: BaseException | None) -> bool:
    """Whether the broker, or the client, refuses a declaration that it would refuse at every later time, too.

    Missing permissions, a missing vhost and a wrong password may be mended on the broker: they are waited out.
    """
    text = str(error)
    refused = isinstance(error, aiormq.exceptions.ChannelAccessRefused) and any(each in text for each in _NEVER_ALLOWED)
    return refused or isinstance(error, aiormq.exceptions.ChannelPreconditionFailed | ValueError)


@contextmanager
def converted(doing: str) -> Iterator[None]:
    """Turn every way in which a broker can be away into `BrokerUnavailable`.

    The client library's own tasks are cancelled when a connection ends, and who waits for one hears of that: a
    cancellation that nobody has asked this task for is a lost connection.
    """
    try:
        yield
    except AWAY as error:
        raise BrokerUnavailable(f"{doing}: {describe(error)}") from error
    except asyncio.CancelledError as error:
        if _is_asked_for():
            raise
        raise BrokerUnavailable(f"{doing}: the connection ended meanwhile") from error


async def close(connection: aio_pika.abc.AbstractConnection | None) -> None:
    """Close, whatever state the connection is in; a peer that does not answer is left after two seconds."""
    if connection is not None:
        with suppress(BrokerUnavailable), converted("cannot close"):
            async with asyncio.timeout(2):
                await connection.close()


def _is_asked_for() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def vhost(url: str) -> str:
    """The virtual host of the first of these URLs, `/` where it names none; empty where it is no URL."""
    try:
        path = URL(url.split(",", maxsplit=1)[0].strip()).raw_path
    except ValueError:
        return ""
    return unquote(path[1:]) or "/"


def describe(error: BaseException | None) -> str:
    """An error of aio-pika in a few words."""
    if error is None:
        return "closed"
    if isinstance(error, asyncio.CancelledError):  # with which the client ends a connection that fell silent
        return "no sign of life, not even a heartbeat"
    if isinstance(error, aiormq.exceptions.InvalidFrameError) and "Connection.Close" in str(error):
        return "the broker does not let this user in: is the vhost there, and has the user permissions in it?"
    return " ".join(str(error).split()) or type(error).__name__


def shown(url: str) -> str:
    """The URL without its password, for messages and logs."""
    if urls.is_ambiguous(url):
        return "the broker URL"
    try:
        parsed = URL(url)
        return str(parsed.with_password("***") if parsed.password else parsed)
    except ValueError:
        return "the broker URL"


def _parse(url: str, heartbeat: int = HEARTBEAT_SECONDS) -> URL:
    try:
        target = URL(url)
    except ValueError as error:
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is no URL; amqp://user:password@host:5672/vhost is accepted, or several with commas"
        ) from error
    if target.scheme not in ("amqp", "amqps") or not target.host:
        raise ConfigurationError(
            f"OUTBOXKIT_BROKER_URL has scheme {target.scheme!r} and host {target.host!r}; "
            "amqp://user:password@host:5672/vhost or amqps://… is accepted"
        )
    return target if "heartbeat" in target.query else target.update_query(heartbeat=heartbeat)
