"""What is refused before there is a connection; the rest is in tests/integration/broker/test_http_publisher*.py."""

from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytest

from outboxkit.brokers.http import HttpPublisher
from outboxkit.errors import ConfigurationError


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


async def test_connecting_opens_nothing_and_closing_may_be_repeated():
    made = HttpPublisher("https://api.example/")
    await made.connect()
    await made.connect()
    assert await made.publish([]) == []
    await made.close()
    await made.close()
