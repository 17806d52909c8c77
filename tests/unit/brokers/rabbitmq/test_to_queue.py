"""How a message is addressed to one queue. The publisher itself is tested on a real broker."""

from outboxkit.brokers.rabbitmq.publisher import addressed
from tests.unit.shop import message


def test_the_queue_is_noted_for_the_publisher():
    sent = addressed(message(headers={"tenant": "a"}), "statistics")
    assert (sent.queue, sent.headers) == ("statistics", {"tenant": "a"})


def test_nothing_else_changes():
    known = message(key="k", correlation_id="story", causation_id="cause", content_encoding="gzip")
    sent = addressed(known, "statistics")
    for name in (
        "id",
        "type",
        "topic",
        "payload",
        "key",
        "correlation_id",
        "causation_id",
        "created_at",
        "content_encoding",
    ):
        assert getattr(sent, name) == getattr(known, name)
