"""Messages of an outbox, as a test compares them with events."""

from dataclasses import dataclass
from datetime import UTC, datetime

from outboxkit import event
from outboxkit.codec import payloads
from outboxkit.message import Message
from outboxkit.testing.messages import AddedMessage

AT = datetime(2026, 3, 1, tzinfo=UTC)


@event("kit.Weighed")
@dataclass(frozen=True)
class Weighed:
    grams: int


def added(
    payload: bytes = b'{"grams":1}', *, due_at: datetime | None = None, name: str = "kit.Weighed"
) -> AddedMessage:
    return AddedMessage(Message(id="m", type=name, payload=payload, created_at=AT), due_at=due_at)


def test_it_equals_an_event_of_its_name_and_content():
    assert added() == Weighed(1)
    assert added(payloads.encode(Weighed(2))) != Weighed(1)
    assert added(name="kit.Sold") != Weighed(1)


def test_it_equals_its_message_and_another_with_the_same_time():
    assert added() == added().message
    assert added() == added()
    assert added() != added(due_at=AT)
    assert len({added(), added(), added(b"{}")}) == 2


def test_it_equals_nothing_that_is_no_event():
    assert added() != {"grams": 1}
    assert not added() == "kit.Weighed"  # noqa: SIM201 - __eq__ itself is asked


def test_a_payload_that_is_not_the_events_is_shown_as_json():
    assert added().event == Weighed(1)
    assert added(b'{"kilos":1}').event == {"kilos": 1}
    assert added(name="kit.Unknown").event == {"grams": 1}
