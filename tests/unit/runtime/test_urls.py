"""URLs: which are accepted, and that nothing secret of them is ever shown."""

import pytest

from outboxkit import ConfigurationError
from outboxkit.runtime import settings, urls

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql+psycopg://app:{SECRET}@db:5432/shop?sslpassword={SECRET}", "postgresql://db:5432/shop"),
        (f"postgresql://u:%40{SECRET}@[::1]/x", "postgresql://[::1]/x"),
        (f"postgresql://u:p/{SECRET}@db/x", "postgresql://db/x"),
        (f"postgresql://u:{SECRET}@/shop?host=/run/pg", "postgresql:///run/pg/shop"),
        ("sqlite:////tmp/a@b.db?timeout=5", "sqlite:////tmp/a@b.db"),
        ("sqlite://", "sqlite:// in memory"),
        (f"amqp://u:{SECRET}@mq:5672/v?x={SECRET}", "amqp://mq:5672/v"),
        (f"amqp://a:{SECRET}@one/v, amqps://b:{SECRET}@[::1]:5671", "amqp://one/v, amqps://[::1]:5671"),
        ("memory://", "memory://"),
        (f"https://a:{SECRET}@pay.example:8443/{SECRET}?k={SECRET}", "https://pay.example:8443"),
        (f"postgresql://u:p@{SECRET}@db/x", "postgresql://…"),
        (f"postgresql://u:p@{SECRET}:55@db/x", "postgresql://…"),
        (f"postgresql://u:p@{SECRET}/5@db/x", "postgresql://…"),
        (f"postgresql://u:p@{SECRET}?5@db/x", "postgresql://…"),
        (f"mysql://u:p@{SECRET}@db/x", "mysql://…"),
        (f"amqp://u:p@{SECRET}@mq/", "amqp://…"),
        (f"amqp://u:12/{SECRET}@mq/", "amqp://…"),
        (f"amqp://u:p#{SECRET}@mq/", "amqp://…"),
        (f"amqp://u:p?{SECRET}@mq/", "amqp://…"),
        (f"amqp://a:x,{SECRET}@mq", "amqp://…, a URL without a scheme"),
        (f"https://a:p@{SECRET}@pay.example/", "https://…"),
        (f"https://a:p/{SECRET}@pay.example/", "https://…"),
        (f"a:{SECRET}@mq", "a URL without a scheme"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str):
    assert urls.shown(url) == shown


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("database_url", f"postgresql://u:p@{SECRET}@db/x", "an @ in a user or a password is written %40"),
        ("database_url", f"postgresql+psycopg://u:p@{SECRET}:9@db:5432/x", "is written %40"),
        ("database_url", f"postgresql+psycopg://127.0.0.1:1/x?user=u&password=@{SECRET}", "is written %40"),
        ("broker_url", f"amqp://u:p@{SECRET}@mq/", "is written %40"),
        ("broker_url", f"amqps://u:1/{SECRET}@mq/", "a / %2F"),
        ("broker_url", f"amqp://mq/,amqp://u:p@{SECRET}@mq/", "is written %40"),
        ("broker_url", f"https://u:p@{SECRET}@pay.example/", "is written %40"),
        ("broker_url", f"a:{SECRET}@mq://x", "it does not begin with one of these"),
        ("database_url", f"shop:{SECRET}", "it has no scheme://"),
        ("database_url", "", "it is empty"),
        ("database_url", f"postgresql://u:{SECRET}@db:port/x", "sqlite:///path is accepted"),
        (
            "database_url",
            f"postgres://u:{SECRET}@db/x",
            "postgresql+psycopg://… is accepted; write that instead of",
        ),
        ("database_url", "sqlite://shop.db", "sqlite:///path is accepted, with three slashes"),
        (
            "broker_url",
            f"amqps://u:{SECRET}@mq/?cafil=/ca.pem",
            "cafile, certfile, keyfile, capath, cadata, no_verify_ssl",
        ),
        (
            "broker_url",
            f"amqps://mq/,amqps://u:{SECRET}@mq/?{SECRET}=1",
            "are accepted behind the ?, and not one option",
        ),
        ("broker_url", f"amqp://u:{SECRET}@mq/?cafile=/ca.pem", "the option cafile behind the ? is for amqps://"),
        ("broker_url", f"amqp://u:{SECRET}@mq/?heartbeat=5s", "a whole number of seconds is accepted"),
        ("broker_url", f"amqps://u:{SECRET}@mq/?cafile=", "the option cafile behind the ? has no value"),
        ("database_url", f"postgresql+asyncpg://u:{SECRET}@db/x?ssl=require", "know 'ssl': write sslmode=require"),
        ("database_url", f"postgresql+psycopg2://u:{SECRET}@db/x?sslmode=require&keepalive=1", "'keepalive'"),
        ("database_url", f"postgresql://u:{SECRET}@db/x?{SECRET}=1", "does not know one option"),
    ],
)
def test_a_url_that_cannot_be_used_says_how_to_write_it(name: str, value: str, said: str):
    with pytest.raises(ConfigurationError) as raised:
        settings.load({"database_url": "sqlite://", name: value})
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg2://u:{SECRET}@db/x?sslmode=require&connect_timeout=3&options=-csearch_path%3Da@b",
        f"postgresql://user@server:{SECRET}@db/x",
        "sqlite:///a@b.db?timeout=5",
    ],
)
def test_what_was_usable_is_usable(url: str):
    assert settings.load({"database_url": url}).database_url.get_secret_value() == url


@pytest.mark.parametrize(
    "query",
    [
        "sslmode=verify-full",
        "host=a,b&port=5432,5433",
        "host=a&host=b&port=1&port=2",
        "connect_timeout=-1",
        "hostaddr=::1",
    ],
)
def test_options_of_libpq_are_accepted(query: str):
    urls.check_database(f"postgresql+psycopg://u@/x?{query}")


def test_a_variable_that_kubernetes_makes_for_a_service_says_what_to_do():
    with pytest.raises(ConfigurationError, match="a Service named outboxkit-admin: give the Service another name"):
        settings.load({"database_url": "sqlite://", "admin_port": "tcp://10.0.0.7:9464"})
