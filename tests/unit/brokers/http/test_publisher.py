"""What is refused before there is a connection; the rest is in tests/integration/broker/test_http_publisher*.py."""

from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytest

from outboxkit.brokers.http import HttpPublisher
from outboxkit.errors import BrokerUnavailable, ConfigurationError
from outboxkit.message import Message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"concurrency": 0}, "more than 0"),
        ({"max_answer": 0}, "more than 0"),
        ({"timeout": timedelta(0)}, "more than 0"),
        ({"secret": "swordfish"}, "whsec_"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(options: dict[str, Any], reason: str):
    with pytest.raises(ConfigurationError, match=reason) as raised:
        HttpPublisher(**{"url": "http://user:swordfish@api.example/", **options})
    assert "swordf" not in str(raised.value)


def test_it_says_who_it_is():
    made = HttpPublisher("http://user:swordfish@api.example/hooks/T0?token=f1sh")
    assert repr(made) == "HttpPublisher('http://api.example')"
    assert made._fixed["user-agent"] == f"outboxkit/{version('outboxkit')}"


async def test_without_a_connection_nothing_is_published():
    with pytest.raises(BrokerUnavailable, match="not connected"):
        await HttpPublisher("https://api.example/").publish([Message("1", "T", b"")])
