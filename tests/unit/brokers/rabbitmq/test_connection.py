"""URLs, errors and what of them may be shown."""

import asyncio
import inspect
import random
import socket

import aio_pika
import aiormq
import pytest
from aiormq.base import FutureStore
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands, frame
from yarl import URL

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq import connection, taps
from outboxkit.brokers.rabbitmq.confirms import ConfirmParser, ConfirmTracker
from outboxkit.brokers.rabbitmq.taps import HEARTBEAT
from tests.servers.ports import free_ports

SECRET = "hunter2"  # the tests look for it in every text


@pytest.mark.parametrize("url", ["amqp://mq/", f"amqps://shop:{SECRET}@mq:5671/v%2Fhost"])
def test_an_amqp_url_gets_a_heartbeat_unless_it_has_one(url: str):
    parsed = connection._parse(url)
    assert parsed.query["heartbeat"] == str(connection.HEARTBEAT_SECONDS)
    assert parsed.with_query(None) == URL(url)
    assert connection._parse(f"{url}?heartbeat=5").query["heartbeat"] == "5"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mq",
        f"http://shop:{SECRET}@mq/",
        f"amqp://shop:{SECRET}@mq:port/",
        f"amqp://shop:{SECRET}@/",
        f"amqp:shop:{SECRET}@mq",
        f"amqp://[shop:{SECRET}@mq",
        "amqp:///vhost",
        "amqp://mq/,http://mq/",
        "amqp://mq/,",
        f"amqp://shop:{SECRET}@mq/,shop:{SECRET}@two",
    ],
)
async def test_something_else_is_refused_in_one_line_without_the_password(url: str):
    with pytest.raises(
        ConfigurationError, match=r"OUTBOXKIT_BROKER_URL .*amqp://user:password@host:5672/vhost"
    ) as raised:
        await connection.connect(url, name="unit test", timeout=1)
    assert SECRET not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "refused"),
        ConnectionResetError(),
        TimeoutError(),
        OSError(113, "no route to host"),
        aiormq.exceptions.AMQPConnectionError("away"),
        aiormq.exceptions.ChannelInvalidStateError("closed"),
        aiormq.exceptions.ConnectionClosed(320, "CONNECTION_FORCED"),
        asyncio.InvalidStateError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_way_of_being_away_is_one_error(error: Exception):
    with pytest.raises(BrokerUnavailable, match="cannot ack: ") as raised, connection.convert_errors("cannot ack"):
        raise error
    assert raised.value.__cause__ is error


def test_other_errors_are_passed_on():
    with pytest.raises(ZeroDivisionError), connection.convert_errors("cannot ack"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "closed"),
        (TimeoutError(), "no answer in time"),
        (OSError("two\n  lines"), "two lines"),
        (asyncio.CancelledError(), "no sign of life, not even a heartbeat"),
        (
            aiormq.exceptions.InvalidFrameError("Expected one of ['Tune'], got <Other>"),
            "Expected one of ['Tune'], got <Other>",
        ),
    ],
)
def test_an_error_is_described_in_one_line(error: BaseException | None, text: str):
    assert connection.describe(error) == text


async def test_tls_on_a_port_without_it_is_told():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"AMQP\x00\x00\x09\x01")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BrokerUnavailable, match="no TLS is spoken there; usual are amqps:// on port 5671"):
            await connection.connect(f"amqps://shop:{SECRET}@127.0.0.1:{port}/", name="unit test", timeout=5)


async def test_of_several_brokers_each_is_tried_and_each_failure_is_shown_without_its_password():
    one, two = free_ports(2)
    url = f"amqp://shop:{SECRET}@127.0.0.1:{one}/, amqp://shop:{SECRET}@127.0.0.1:{two}/"
    with pytest.raises(BrokerUnavailable) as raised:
        await connection.connect(url, name="unit test", timeout=5)
    for port in (one, two):
        assert f"cannot connect to amqp://127.0.0.1:{port}/: " in str(raised.value)
    assert SECRET not in str(raised.value)
    assert isinstance(raised.value.__cause__, aiormq.exceptions.AMQPConnectionError)


def as_given(urls: list[str]) -> None:
    """No shuffle."""


async def test_a_broker_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch):
    waited: list[float | None] = []

    class Impatient(aio_pika.Connection):
        async def connect(self, timeout: float | None = None) -> None:
            waited.append(timeout)
            await super().connect(timeout=1)

    monkeypatch.setattr(aio_pika, "Connection", Impatient)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (closed,) = free_ports(1)
        nodes = connection.Addresses(f"amqp://127.0.0.1:{port}/,amqp://127.0.0.1:{closed}/", shuffle=as_given)
        with pytest.raises(
            BrokerUnavailable, match=rf"{port}/: it took .* within 2.5 s; cannot connect to .*{closed}/: "
        ):
            await connection.connect(nodes, name="test", timeout=5)
    assert waited == [2.5, 2.5]


class Silent(TransportFactory):
    """Makes a reader that nobody feeds but the test."""

    async def create(self, url: URL, **_: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return asyncio.StreamReader(), None  # type: ignore[return-value]


async def tapped() -> tuple[asyncio.StreamReader, ConfirmTracker]:
    answers, tracker = ConfirmParser(), ConfirmTracker(lambda: None)
    tracker.begin([None] * 9)
    tracker.sent([str(n) for n in range(9)], range(9))
    answers.report_to(tracker, channel=1)
    factory = taps.TappedTransports("amqp", answers)
    factory._transports = Silent()
    reader, _ = await factory.create(URL("amqp://mq/"))
    return reader, tracker


ACK = frame.marshal(commands.Basic.Ack(1, multiple=False), 1)
OTHER = frame.marshal(commands.Channel.OpenOk(), 2)


async def test_the_client_gets_everything_but_the_answers():
    reader, tracker = await tapped()
    reader.feed_data(ACK + OTHER[:5])
    reader.feed_data(OTHER[5:] + ACK)
    reader.feed_eof()
    assert await reader.read() == OTHER
    assert tracker.unconfirmed == 8


async def test_answers_alone_are_a_sign_of_life(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(taps, "SIGN_OF_LIFE_SECONDS", 0)
    reader, _ = await tapped()
    for _ in range(3):
        reader.feed_data(ACK)
    reader.feed_data(OTHER)
    reader.feed_eof()
    assert await reader.read() == HEARTBEAT * 3 + OTHER


async def test_a_burst_of_answers_is_no_burst_of_heartbeats():
    reader, _ = await tapped()
    for _ in range(100):
        reader.feed_data(ACK)
    reader.feed_eof()
    assert await reader.read() == b""


def test_the_client_library_still_has_what_is_built_upon():
    """If this fails after an upgrade, docs/decisions/0013-one-buffer-for-a-batch.md says what to look at."""
    assert "transport_factory" in inspect.signature(aiormq.Connection.__init__).parameters
    assert {"url", "kwargs"} <= set(inspect.signature(TCPTransportFactory.create).parameters)
    for factory in (TCPTransportFactory, TLSTransportFactory):
        assert issubclass(factory, TransportFactory)
        assert inspect.iscoroutinefunction(factory.create)
    protocol = inspect.getsource(asyncio.StreamReaderProtocol.data_received)
    assert "reader.feed_data(data)" in protocol
    assert "**self.kwargs" in inspect.getsource(aio_pika.Connection.connect)


def test_each_worker_tries_the_nodes_in_an_order_of_its_own_and_the_next_after_a_loss():
    nodes = [f"amqp://mq-{number}/" for number in range(3)]
    addresses = connection.Addresses(", ".join(nodes), shuffle=lambda urls: urls.reverse())
    assert addresses.urls == nodes[::-1]
    first = next(addresses.in_turn())
    assert first == nodes[2]
    assert list(addresses.in_turn()) == [nodes[1], nodes[0], nodes[2]], "the first was lost"
    firsts = {connection.Addresses(",".join(nodes), shuffle=random.Random(seed).shuffle).urls[0] for seed in range(20)}
    assert firsts == set(nodes)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        *(("amqp://mq", "/"), ("amqp://mq/", "/"), ("amqp://mq/shop,amqp://b/c", "shop"), ("amqp://mq/%2Fa", "/a")),
        ("amqp://[mq", ""),
    ],
)
def test_the_virtual_host_is_that_of_the_first_url(url: str, name: str):
    assert connection.vhost(url) == name


async def test_a_connection_that_failed_is_closed_and_leaves_nothing_for_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[aio_pika.Connection] = []

    class Recorded(aio_pika.Connection):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(aio_pika, "Connection", Recorded)
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailable):
        await connection.connect(f"amqp://127.0.0.1:{port}/", name="unit test", timeout=5)
    assert [each.is_closed for each in made] == [True]


async def test_a_call_that_the_library_ends_with_its_connection_is_an_outage():
    call = FutureStore(asyncio.get_running_loop()).create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(call.throw, Exception)
    with (
        pytest.raises(BrokerUnavailable, match="cannot open a channel: the connection ended meanwhile"),
        connection.convert_errors("cannot open a channel"),
    ):
        await call
