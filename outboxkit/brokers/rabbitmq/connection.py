"""One connection to RabbitMQ: opened with a limit, named, and its errors converted once."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import aio_pika
import aiormq
from aio_pika.exceptions import CONNECTION_EXCEPTIONS
from yarl import URL

from outboxkit.errors import BrokerUnavailable, ConfigurationError

HEARTBEAT_SECONDS = 20
"""Asked of the broker where the URL says nothing: a peer that is silent for two is gone (AMQP 0-9-1, 4.2.7)."""

AWAY = (*CONNECTION_EXCEPTIONS, TimeoutError, asyncio.InvalidStateError)
"""What aio-pika and the network raise where a broker is not there, or no longer."""


async def connect(
    url: str, *, name: str, timeout: float, on_lost: Callable[[str], None] | None = None
) -> aio_pika.abc.AbstractConnection:
    """Open a connection, shown under `name` in RabbitMQ's own listings; `on_lost` hears why it closed.

    Raises:
        BrokerUnavailable: refused, no such vhost, wrong password, or no answer within `timeout` seconds.
        ConfigurationError: the URL is no AMQP URL.
    """
    target = _parse(url)
    with converted(f"cannot connect to {shown(url)}"):
        connection = await aio_pika.connect(target, timeout=timeout, client_properties={"connection_name": name})
    if on_lost is not None:
        connection.close_callbacks.add(lambda _, error: on_lost(describe(error)))
    return connection


async def open_channel(
    connection: aio_pika.abc.AbstractConnection, *, on_lost: Callable[[str], None] | None = None
) -> tuple[aio_pika.abc.AbstractChannel, aiormq.abc.AbstractChannel]:
    """A channel with publisher confirms, and the wire-level channel below it, whose calls are the fast ones."""
    with converted("cannot open a channel"):
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        if on_lost is not None:
            channel.close_callbacks.add(lambda _, error: on_lost(describe(error)))
        return channel, await channel.get_underlay_channel()


@contextmanager
def converted(doing: str) -> Iterator[None]:
    """Turn every way in which a broker can be away into `BrokerUnavailable`."""
    try:
        yield
    except AWAY as error:
        raise BrokerUnavailable(f"{doing}: {describe(error)}") from error


async def close(connection: aio_pika.abc.AbstractConnection | None) -> None:
    """Close, whatever state the connection is in; a peer that does not answer is left after two seconds."""
    if connection is not None:
        with suppress(*AWAY):
            await asyncio.wait_for(connection.close(), timeout=2)


def describe(error: BaseException | None) -> str:
    """An error of aio-pika in a few words."""
    if error is None:
        return "closed"
    return " ".join(str(error).split()) or type(error).__name__


def shown(url: str) -> str:
    """The URL without its password, for messages and logs."""
    try:
        parsed = URL(url)
        return str(parsed.with_password("***") if parsed.password else parsed)
    except ValueError:
        return "the broker URL"


def _parse(url: str) -> URL:
    try:
        target = URL(url)
    except ValueError as error:
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is no URL; amqp://user:password@host:5672/vhost is accepted"
        ) from error
    if target.scheme not in ("amqp", "amqps") or not target.host:
        raise ConfigurationError(
            f"OUTBOXKIT_BROKER_URL has scheme {target.scheme!r} and host {target.host!r}; "
            "amqp://user:password@host:5672/vhost or amqps://… is accepted"
        )
    return target if "heartbeat" in target.query else target.update_query(heartbeat=HEARTBEAT_SECONDS)
