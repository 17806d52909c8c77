"""The envelope: frozen, checked at once, and which message is being handled."""

import asyncio
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from outboxkit import EncodeError, Message
from outboxkit.message import NAME_LIMIT, Handling, caused_by, current_handling, handling, unchecked
from tests.unit.shop import NOW, message

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TEXTS = ["id", "type", "key", "topic", "correlation_id", "causation_id", "content_type", "content_encoding"]


def test_headers_are_a_copy_that_cannot_be_written():
    given = {"tenant": "a"}
    made = message(headers=given)
    given["tenant"] = "b"
    assert made.headers == {"tenant": "a"}
    with pytest.raises(TypeError):
        made.headers["tenant"] = "c"


def test_equal_fields_make_equal_messages_with_one_hash():
    assert message(headers={"a": 1}) == message(headers={"a": 1})
    assert hash(message(headers={"a": 1})) == hash(message(headers={"a": 1}))
    assert message(headers={"a": 1}) != message(headers={"a": 2})
    assert replace(message(), key="order-7").key == "order-7"


def test_the_routing_key_is_the_topic_or_else_the_type():
    assert message().routing_key == "OrderConfirmed"
    assert message(topic="orders.confirmed").routing_key == "orders.confirmed"
    assert message(topic="").routing_key == ""


@pytest.mark.parametrize("missing", ["id", "type"])
@pytest.mark.parametrize("value", ["", None])
def test_id_and_type_are_required(missing: str, value: str | None):
    with pytest.raises(EncodeError, match="needs an id" if missing == "id" else "needs a type"):
        message(**{missing: value})


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_fits_an_amqp_short_string(name: str):
    message(**{name: "x" * NAME_LIMIT})
    with pytest.raises(EncodeError, match=f"message {name} is 256 bytes long; AMQP carries at most 255"):
        message(**{name: "x" * (NAME_LIMIT + 1)})
    with pytest.raises(EncodeError, match=f"message {name} is 256 bytes"):
        message(**{name: "é" * 128})


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    ("value", "reason"), [("a\0b", "NUL"), ("\ud800", "lone surrogate"), (7, "must be a str"), (b"id", "must be a str")]
)
def test_what_amqp_and_postgresql_cannot_carry_is_refused(name: str, value: object, reason: str):
    with pytest.raises(EncodeError, match=reason) as raised:
        message(**{name: value})
    assert f"message {name} " in str(raised.value)


@pytest.mark.parametrize("payload", ["{}", None, {"order_id": 7}])
def test_the_payload_is_bytes(payload: object):
    with pytest.raises(EncodeError, match="payload"):
        message(payload=payload)


def test_the_time_has_a_zone():
    with pytest.raises(EncodeError, match="created_at"):
        message(created_at=NOW.replace(tzinfo=None))


def test_a_message_of_a_checked_row_is_like_any_other():
    values = ("m-1", "T", b"{}", "k", "t", {"a": 1}, "c", "d", NOW, "text/plain", "gzip", "billing", 3)
    made = unchecked(values)
    assert made == Message(*values)
    assert hash(made) == hash(Message(*values))
    assert [getattr(made, field.name) for field in fields(Message)] == list(values)
    assert replace(made, key="other").key == "other"
    with pytest.raises(TypeError):
        made.headers["a"] = 2
    with pytest.raises(FrozenInstanceError):
        made.key = "other"


def test_the_message_being_handled_is_known_inside_the_block_only():
    outer, inner = message(id="outer"), message(id="inner")
    assert current_handling() is None
    with handling(outer):
        with handling(inner):
            assert current_handling() == Handling(inner)
        assert current_handling() == Handling(outer)
    assert current_handling() is None


def test_the_block_ends_with_an_exception_too():
    with pytest.raises(ZeroDivisionError), handling(message()):
        raise ZeroDivisionError
    assert current_handling() is None


async def test_tasks_handle_their_own_messages():
    both_inside = asyncio.Barrier(2)

    async def handle(id_: str) -> str | None:
        with handling(message(id=id_)):
            await both_inside.wait()
            found = current_handling()
            return found.message.id if found else None

    assert await asyncio.gather(handle("a"), handle("b")) == ["a", "b"]


def test_a_message_inherits_its_story_and_its_trace():
    cause = message(id="m-1", correlation_id="c-1", headers={"traceparent": PARENT, "tracestate": 5, "tenant": "a"})
    effect = caused_by(cause, {"id": "m-2", "headers": {"own": "x"}})
    assert effect.pop("headers") == {"traceparent": PARENT, "own": "x"}
    assert effect == {"id": "m-2", "correlation_id": "c-1", "causation_id": "m-1"}
    assert caused_by(message(id="m-1"), {})["correlation_id"] == "m-1"


def test_what_a_message_says_itself_stays():
    cause = message(id="m-1", correlation_id="c-1", headers={"traceparent": PARENT, "tracestate": "b"})
    own = {"correlation_id": "c-2", "causation_id": "m-0", "headers": {"traceparent": "00-c"}}
    assert caused_by(cause, own) == own


def test_the_name_of_a_queue_is_not_empty():
    with pytest.raises(EncodeError, match="message queue is ''; None is accepted, or the name of a queue"):
        message(queue="")
