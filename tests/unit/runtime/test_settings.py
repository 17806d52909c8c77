"""Settings: where they come from, and what a bad one says."""

from base64 import b64encode
from datetime import timedelta

import pytest

from outboxkit import ConfigurationError
from outboxkit.runtime.settings import SECRETS, load, variable
from outboxkit.runtime.sources import Binding, ConsumedQueue

SECRET = "hunter2"
BAD = {
    "database_url": ["", "shop.db", f"mysql://shop:{SECRET}@db/shop", f"postgresql://u:p@{SECRET}:{SECRET}@db/shop"],
    "broker_url": [
        "",
        "mq",
        f"http://a:{SECRET}@",
        f"https://:{SECRET}@:8443/",
        f"https://mq/#{SECRET}",
        f"https://mq:{SECRET}/",
        f"https://mq/a {SECRET}",
        f"https://mq/\r\nX-Evil: {SECRET}",
        f"https://one/,https://a:{SECRET}@two/",
        f"https://one/, amqp://a:{SECRET}@two/",
        f"ftp://a:{SECRET}@mq/",
        f"shop:{SECRET}@mq",
        f"amqp:/shop:{SECRET}@mq",
        f"amqp://a:{SECRET}@mq,",
        f"amqp://mq,http://a:{SECRET}@mq",
        "memory://,memory://",
        "amqp://mq,memory://",
        f"amqp://a:x,{SECRET}@mq/",
        f"amqp://a:x,{SECRET}://@mq/",
    ],
    "management_url": [
        "",
        SECRET,
        f"amqp://a:{SECRET}@mq/",
        f"http://a:{SECRET}@x@mq/",
        f"http://{SECRET} /",
    ],
    "destination": ["", "x" * 256],
    "http_authorization": [
        "",
        f" {SECRET}",
        f"Bearer {SECRET}\r\nHost: evil",
        f"Bearer  {SECRET}",
        f"Bearer {SECRET}é",
    ],
    "http_secret": [
        "",
        SECRET,
        "whsec_",
        f"whsec_{SECRET}",
        f"whsec_{b64encode(b'x' * 23).decode()}",
        f"whsec_{b64encode(b'x' * 65).decode()}",
        b64encode(b"x" * 32).decode(),
        f"whsec_{b64encode(b'x' * 32).decode()}*{SECRET}",
    ],
    "exchange": ["", "x" * 256],
    "readers": ["", ",", "cloudevents,,shop:till", " , "],
    "queue": ["", "x" * 201, "mails:0", "mails:1001", "a,,b", "a,a:2", "a,", ":2", "mails:"],
    "bind": ["", "orders", ":key", "=x:y", "q=:k", "x" * 256 + ":k", "a:b,", "q="],
    "declare": ["", "perhaps", "2"],
    "batch_size": ["0", "-1", "10001", "1.5", "many", ""],
    "publish_timeout": ["0s", "10", "-1s", "soon", "", "10 parsecs", "1e3s", "9" * 400 + "d", "1000000d"],
    "concurrency": ["0", "1001", "x"],
    "ordered": ["", "perhaps", "2"],
    "shards": ["", "0", "65", "many"],
    "max_attempts": ["0", "x"],
    "max_message_bytes": ["1023", "16777217", "4MiB"],
    "published_retention": ["", "0d", "7", "for ever"],
    "inbox_retention": ["0d", "14", "14 days"],
    "dead_retention": ["", "0d", "for ever"],
    "retry_delays": ["", "1s,", "10s,1s", "1s,1s", "0s,1s", "1s;2s", "1s,x"],
    "admin_port": [
        "",
        "x",
        "65536",
        "-1",
        "1.5",
        "host:",
        ":9464",
        "::1:9464",
        "[::1]",
        "a b:1",
        "tcp://10.0.0.1:9464",
    ],
    "shutdown_timeout": ["0s", "x"],
    "log_level": ["loud", "", "10"],
}


@pytest.fixture(autouse=True)
def _database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one setting that has no default."""
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", "sqlite:///shop.db")


CASES = [(name, value) for name, values in BAD.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{name}-{value[:20]}" for name, value in CASES])
def test_a_bad_value_is_one_line_with_the_variable_and_what_was_found(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setenv(variable(name), value)
    with pytest.raises(ConfigurationError) as raised:
        load()
    said = str(raised.value)
    assert len(said.splitlines()) == 1
    if name in SECRETS:
        assert said.startswith(f"{variable(name)} cannot be used: ")
        assert " is accepted" in said or " are accepted" in said
        assert SECRET not in said
        assert len(value) < 7 or value not in said
    else:
        assert said.startswith(f"{variable(name)} is {value!r}: ")
        assert "timedelta" not in said


def test_every_bad_value_gets_its_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOXKIT_BATCH_SIZE", "0")
    monkeypatch.setenv("OUTBOXKIT_LOG_LEVEL", "loud")
    with pytest.raises(ConfigurationError) as raised:
        load({"queue": ""})
    assert [line.split(" ")[0] for line in str(raised.value).splitlines()] == [
        "--queue",
        "OUTBOXKIT_BATCH_SIZE",
        "OUTBOXKIT_LOG_LEVEL",
    ]


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("publish_timeout", "a duration such as 500ms, 10s, 5m, 2h or 7d is accepted"),
        ("retry_delays", "a duration such as 500ms, 10s, 5m, 2h or 7d is accepted"),
        ("log_level", "'debug', 'info', 'warning' or 'error'"),
        ("batch_size", "a whole number from 1 to 10000 is accepted"),
        ("database_url", "postgresql+psycopg://user:password@host/name or sqlite:///path"),
        ("broker_url", "amqp://user:password@host:5672/vhost, amqps://…, memory:// or https://host/path"),
        ("management_url", "http://user:password@host:15672 or https://… is accepted"),
        ("http_secret", "whsec_ and 24 to 64 bytes in base64 is accepted"),
    ],
)
def test_what_is_accepted_is_said(monkeypatch: pytest.MonkeyPatch, name: str, accepted: str):
    monkeypatch.setenv(variable(name), "nonsense")
    with pytest.raises(ConfigurationError) as raised:
        load()
    assert accepted in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("queue", "billing", (ConsumedQueue("billing"),)),
        ("queue", "billing, mails:2", (ConsumedQueue("billing"), ConsumedQueue("mails", 2))),
        ("queue", "a:b:1000", (ConsumedQueue("a:b", 1000),)),
        ("queue", "a:b", (ConsumedQueue("a:b"),)),
        ("bind", "amq.topic:orders.*", (Binding("amq.topic", "orders.*"),)),
        ("bind", "Shop:OrderPaid:, mails=x:k=1", (Binding("Shop:OrderPaid", ""), Binding("x", "k=1", "mails"))),
        ("declare", "false", False),
        ("batch_size", "10000", 10_000),
        ("publish_timeout", "500ms", timedelta(milliseconds=500)),
        ("inbox_retention", "7d", timedelta(days=7)),
        ("retry_delays", "1s, 10s,2m", (timedelta(seconds=1), timedelta(seconds=10), timedelta(minutes=2))),
        ("retry_delays", "5m", (timedelta(minutes=5),)),
        ("log_level", "WARNING", "warning"),
        ("published_retention", "7d", timedelta(days=7)),
        ("destination", "payments", "payments"),
        ("ordered", "yes", True),
    ],
)
def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object):
    monkeypatch.setenv(variable(name), text)
    assert getattr(load(), name) == value
    monkeypatch.delenv(variable(name))
    assert getattr(load({name: text}), name) == value


def test_an_option_wins_over_the_variable_and_none_is_no_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOXKIT_QUEUE", "from-the-environment")
    assert load({"queue": "option"}).queue == (ConsumedQueue("option"),)
    assert load({"queue": None}).queue == (ConsumedQueue("from-the-environment"),)


def test_no_password_is_ever_shown():
    found = load(
        {
            "database_url": f"postgresql://a:{SECRET}@db/x",
            "broker_url": f"https://a:{SECRET}@mq/",
            "management_url": f"http://a:{SECRET}@mq:15672",
            "http_authorization": f"Bearer {SECRET}",
            "http_secret": f"whsec_{b64encode(SECRET.encode() * 5).decode()}",
        }
    )
    assert {"http_authorization", "http_secret", "database_url", "broker_url", "management_url"} == SECRETS
    assert b64encode(SECRET.encode() * 5).decode() not in repr(found) + found.model_dump_json()
    for text in (repr(found), str(found), found.model_dump_json(), repr(found.model_dump())):
        assert SECRET not in text


@pytest.mark.parametrize("name", ["queue", "bind"])
def test_a_value_of_a_program_that_is_no_text_is_refused(name: str):
    with pytest.raises(ConfigurationError, match=f"--{name}"):
        load({name: 5})
