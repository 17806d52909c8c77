"""Connections to RabbitMQ: opening with a time limit, and converting the client library's errors, in this one place."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import aio_pika
import aiormq
from aio_pika.exceptions import CONNECTION_EXCEPTIONS
from yarl import URL

from outboxkit.brokers.rabbitmq.rights import user_of
from outboxkit.brokers.rabbitmq.taps import OnWriter, Tap, TappedTransports
from outboxkit.errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from outboxkit.runtime import urls
from outboxkit.runtime.outage import is_cancelled

HEARTBEAT_SECONDS = 20
"""The heartbeat interval if the URL has none. A peer that is silent for three of them is gone."""

_NEVER_ALLOWED = ("reserved prefix", "default exchange")
"""Parts of RabbitMQ's errors for names that no user may declare, whatever the permissions."""

CONNECTION_ERRORS = (*CONNECTION_EXCEPTIONS, TimeoutError, asyncio.InvalidStateError)
"""Exceptions of aio-pika and the network if the broker is not reachable or the connection is lost."""


class Addresses:
    """The URLs of a broker's nodes, shuffled, so that not all workers connect to the first node.

    Args:
        url: one, or several with commas.
        shuffle: puts them into their order, once.

    Attributes:
        urls: in this order.
    """

    def __init__(self, url: str, *, shuffle: Callable[[list[str]], None] = random.shuffle) -> None:
        self.urls = list(dict.fromkeys(map(str.strip, url.split(","))))
        shuffle(self.urls)
        self._next = 0

    def in_turn(self) -> Iterator[str]:
        """Each URL once, starting after the one that was tried last, which was lost or did not answer."""
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
    """Open a connection.

    Args:
        url: one or several, separated by commas, which are tried in turn; `Addresses` go on where they stopped.
        name: the connection's name in RabbitMQ's listings.
        timeout: seconds, for all URLs together.
        heartbeat: the interval in seconds to ask for if the URL has none.
        on_lost: called with the reason when the connection has closed.
        tap: gets the bytes that arrive before the client library does.
        on_writer: called with a writer for whole frames between those of the client library, and with a function that
            reports a heartbeat to it.

    Raises:
        BrokerRefused: each node refuses user, password or virtual host, or a file of a certificate cannot be read.
        BrokerUnavailable: a node cannot be reached, or does not answer in time.
        ConfigurationError: a URL is not an AMQP URL.
    """
    addresses = url if isinstance(url, Addresses) else Addresses(url)
    targets = {each: _parse(each, heartbeat) for each in addresses.urls}
    failures: list[BrokerUnavailable] = []
    for each in addresses.in_turn():
        target, connection, seconds = targets[each], None, timeout / len(targets)
        transports = TappedTransports(target.scheme, tap, on_writer)
        try:
            _check_files(target, f"cannot connect to {urls.shown(each)}")
            with convert_errors(f"cannot connect to {urls.shown(each)}"):
                connection = aio_pika.Connection(target, client_properties={"connection_name": name})
                connection.kwargs["transport_factory"] = transports
                await connection.connect(timeout=seconds)
        except (Exception, asyncio.CancelledError) as error:
            await close(connection)  # else the client library does when it is freed, maybe in a thread without a loop
            if not isinstance(error, BrokerUnavailable):
                raise
            failures.append(_named(error, each, transports, seconds))
            continue
        transports.is_opening = False
        if on_lost is not None:
            connection.close_callbacks.add(lambda _, error: on_lost(describe(error)))
        return connection
    text, cause = "; ".join(map(str, failures)), failures[-1].__cause__
    if all(isinstance(error, BrokerRefused) for error in failures):
        raise BrokerRefused(text, kind=getattr(failures[-1], "kind", "")) from cause
    raise BrokerUnavailable(text) from cause


def _check_files(target: URL, action: str) -> None:
    """Open each file of a certificate, whose name the client library does not tell if it cannot be read."""
    for option in urls.FILES:
        if path := target.query.get(option):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                text = f"{action}: {path!r}, which ?{option}= in OUTBOXKIT_BROKER_URL names, cannot be read"
                raise BrokerRefused(f"{text}: {error.strerror}", kind="file") from error


def _named(error: BrokerUnavailable, url: str, transports: "TappedTransports", seconds: float) -> BrokerUnavailable:
    """The error of opening a connection, with what was waited for, or what was refused and the cure."""
    action, cause, user = f"cannot connect to {urls.shown(url)}", error.__cause__, user_of(url)
    code, reason = transports.close_code, transports.close_reason
    named: BrokerUnavailable = error
    if isinstance(cause, TimeoutError):
        late = "it took the connection and did not answer" if transports.is_connected else "nothing answered"
        named = BrokerUnavailable(f"{action}: {late} within {seconds:.3g} s")
    elif code == 403 or isinstance(cause, aiormq.exceptions.ProbableAuthenticationError):
        cure = f"are user {user!r} and the password in OUTBOXKIT_BROKER_URL right?"
        named = BrokerRefused(f"{action}: {(reason or describe(cause)).rstrip(' .')}; {cure}", kind="login")
    elif code == 530 and "not found" in reason:
        cure = "is the name right? It is the path of OUTBOXKIT_BROKER_URL, in which / is written %2F"
        named = BrokerRefused(f"{action}: {reason.rstrip(' .')}; {cure}", kind="vhost")
    elif code == 530:
        cure = f"user {user!r} has no rights in it; `outboxkit doctor` prints the line that gives them"
        named = BrokerRefused(f"{action}: {reason}: {cure}", kind="access")
    elif "WRONG_VERSION_NUMBER" in str(cause):
        named = BrokerUnavailable(f"{action}: no TLS is spoken there; usual are amqps:// on port 5671, amqp:// on 5672")
    named.__cause__ = cause
    return named


async def open_channel(
    connection: aio_pika.abc.AbstractConnection, *, on_lost: Callable[[str], None] | None = None
) -> tuple[aio_pika.abc.AbstractChannel, aiormq.abc.AbstractChannel]:
    """Open a channel with publisher confirms. Returns it and the aiormq channel below it, whose calls are faster."""
    with convert_errors("cannot open a channel"):
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        if on_lost is not None:
            channel.close_callbacks.add(lambda _, error: on_lost(describe(error)))
        return channel, await channel.get_underlay_channel()


async def declare_exchange(
    channel: aio_pika.abc.AbstractChannel, name: str, *, timeout: float | None = None
) -> aio_pika.abc.AbstractExchange:
    """Declare the durable topic exchange of this name.

    Raises:
        ConfigurationError: it exists and is of another kind, or the broker reserves the name.
    """
    try:
        return await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True, timeout=timeout)
    except (*CONNECTION_ERRORS, ValueError) as error:
        if not is_permanent(error):
            raise
        raise ConfigurationError(
            f"OUTBOXKIT_EXCHANGE is {name!r}, and no durable topic exchange can be declared: {describe(error)}. Choose "
            "another name, or delete that exchange if it is not used otherwise"
        ) from error


def is_permanent(error: BaseException | None) -> bool:
    """Whether the broker or the client library would refuse the same declaration again at any later time.

    Missing permissions, a missing vhost and a wrong password are `BrokerRefused`: an operator can mend them meanwhile.
    """
    text = str(error)
    refused = isinstance(error, aiormq.exceptions.ChannelAccessRefused) and any(each in text for each in _NEVER_ALLOWED)
    return refused or isinstance(error, aiormq.exceptions.ChannelPreconditionFailed | ValueError)


@contextmanager
def naming_rights(line: str, more: str = "") -> Iterator[None]:
    """A block in which the error of a missing right gets the line that gives all the rights that are needed."""
    try:
        yield
    except BrokerRefused as error:
        if error.kind != "right":
            raise
        text = f"{error}. Give it the rights of this work, in place of those that it has: {line}{more}"
        text += ". For a user of a relay and consumers, `outboxkit doctor MODULE --queue QUEUE` prints all of them"
        raise BrokerRefused(text, kind=error.kind) from error.__cause__


@contextmanager
def convert_errors(action: str) -> Iterator[None]:
    """A block in which the client library's connection errors become `BrokerUnavailable`, with `action` in the text.

    A right that the user does not have becomes `BrokerRefused`.

    When a connection ends, the library cancels its own tasks and so every caller that awaits one. A cancellation that
    was not requested for the current task is therefore a lost connection. So is a bare `Exception` that one caused.
    """
    try:
        yield
    except aiormq.exceptions.ChannelAccessRefused as error:
        raise BrokerRefused(f"{action}: this user may not: {describe(error)}", kind="right") from error
    except CONNECTION_ERRORS as error:
        raise BrokerUnavailable(f"{action}: {describe(error)}") from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise BrokerUnavailable(f"{action}: the connection ended meanwhile") from error
    except Exception as error:
        if type(error) is not Exception or not isinstance(error.__cause__, asyncio.CancelledError):
            raise
        raise BrokerUnavailable(f"{action}: the connection ended meanwhile") from error


async def close(connection: aio_pika.abc.AbstractConnection | None) -> None:
    """Close the connection, whatever its state. Waits two seconds at most for the broker's answer."""
    if connection is None:
        return
    try:
        with suppress(BrokerUnavailable), convert_errors("cannot close"):
            async with asyncio.timeout(2):
                await connection.close()
    finally:
        await connection.close()  # awaits nothing: it notes the end, or the library closes what is freed in any thread


def vhost(url: str) -> str:
    """The virtual host of the first of these URLs, `/` by default. Empty if it is not a URL."""
    try:
        path = URL(url.split(",", maxsplit=1)[0].strip()).raw_path
    except ValueError:
        return ""
    return unquote(path[1:]) or "/"


def describe(error: BaseException | None) -> str:
    """One line about an error of aio-pika."""
    if error is None:
        return "closed"
    if isinstance(error, asyncio.CancelledError):  # the client library ends a silent connection with it
        return "no sign of life, not even a heartbeat"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__


def _parse(url: str, heartbeat: int = HEARTBEAT_SECONDS) -> URL:
    try:
        target = URL(url)
    except ValueError as error:
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is not a URL; "
            "amqp://user:password@host:5672/vhost is accepted, or several with commas"
        ) from error
    if target.scheme not in ("amqp", "amqps") or not target.host:
        raise ConfigurationError(
            f"OUTBOXKIT_BROKER_URL has scheme {target.scheme!r} and host {target.host!r}; "
            "amqp://user:password@host:5672/vhost or amqps://… is accepted"
        )
    try:
        urls.check_broker_options(url)
    except ValueError as error:
        raise ConfigurationError(f"OUTBOXKIT_BROKER_URL: {error}") from error
    return target if "heartbeat" in target.query else target.update_query(heartbeat=heartbeat)
