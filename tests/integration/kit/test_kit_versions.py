"""The test kit with events of several versions and names."""

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, outbox
from outboxkit.testing import deliver, deliver_all, message_of
from tests.support.night import by_day_on
from tests.unit.inbox.test_versions import SEEN, Packed, pack


@pytest.fixture(autouse=True)
def seen() -> list[object]:
    SEEN.clear()
    return SEEN


def test_a_message_of_an_event_has_its_version():
    made = message_of(Packed(7))
    assert (made.type, made.version) == ("Packed", 2)
    assert message_of(Packed(7), version=1).version == 1


@by_day_on("sqlite")
def test_every_version_and_name_is_delivered(engine: Engine, seen: list[object]):
    with Session(engine) as session, session.begin():
        assert deliver(session, pack, Packed(7)) is Outcome.PROCESSED
        outbox.add(session, Packed(8))
        outbox.add(session, Message(id="old", type="Wrapped", payload=b'{"number":9}'))
        assert [each.type for each in deliver_all(session, pack)] == ["Packed", "Wrapped"]
    assert seen == [Packed(7), Packed(8), Packed(9)]
