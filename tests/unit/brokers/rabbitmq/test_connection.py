"""URLs, errors and what of them may be shown. No connection is opened."""

import asyncio

import aiormq
import pytest
from yarl import URL

from outboxkit import BrokerUnavailable, ConfigurationError
from outboxkit.brokers.rabbitmq import connection

SECRET = "hunter2"  # the tests look for it in every text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"amqp://shop:{SECRET}@mq:5672/vhost", "amqp://shop:***@mq:5672/vhost"),
        (f"amqps://shop:{SECRET}%40%2F@mq/", "amqps://shop:***@mq/"),
        ("amqp://mq/", "amqp://mq/"),
        ("amqp://shop@mq/", "amqp://shop@mq/"),
        (f"amqp://shop:{SECRET}@mq:port/", "the broker URL"),
        (f"amqp://shop:{SECRET}#@mq/", "the broker URL"),
        (f"amqp://shop:{SECRET}/@mq/", "the broker URL"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, text: str):
    assert connection.shown(url) == text


@pytest.mark.parametrize("url", ["amqp://mq/", f"amqps://shop:{SECRET}@mq:5671/v%2Fhost"])
def test_an_amqp_url_gets_a_heartbeat(url: str):
    parsed = connection._parse(url)
    assert parsed.query["heartbeat"] == str(connection.HEARTBEAT_SECONDS)
    assert parsed.with_query(None) == URL(url)


def test_a_heartbeat_of_ones_own_is_kept():
    assert connection._parse("amqp://mq/?heartbeat=5").query["heartbeat"] == "5"


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
    with pytest.raises(BrokerUnavailable, match="cannot ack: ") as raised, connection.converted("cannot ack"):
        raise error
    assert raised.value.__cause__ is error


def test_other_errors_are_passed_on():
    with pytest.raises(ZeroDivisionError), connection.converted("cannot ack"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [(None, "closed"), (TimeoutError(), "TimeoutError"), (OSError("two\n  lines"), "two lines")],
)
def test_an_error_is_described_in_one_line(error: BaseException | None, text: str):
    assert connection.describe(error) == text


async def test_closing_nothing_is_no_error():
    await connection.close(None)
