"""The test kit's `outbox_messages`, `deliver` and `deliver_all`, on sessions of every kind."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Message, Outcome, Reject, TransactionRequired, event, inbox_handler, outbox
from outboxkit.testing import deliver, deliver_all, message_of, messages, outbox_messages
from tests.support.night import by_day_on
from tests.unit.inbox.test_versions import SEEN, Packed, pack

pytestmark = by_day_on("sqlite")


@event("kit.Placed")
@dataclass(frozen=True)
class Placed:
    number: int


@event("kit.Invoiced")
@dataclass(frozen=True)
class Invoiced:
    number: int


@event("Charged", destination="payments")
@dataclass(frozen=True)
class Charged:
    number: int


@inbox_handler("kit.Invoice")
def invoice(session: Session, event: Placed) -> None:
    outbox.add(session, Invoiced(event.number), key=f"order-{event.number}")
    outbox.add(session, Charged(event.number))


@inbox_handler("kit.Fail")
def fail(session: Session, event: Invoiced) -> None:
    outbox.add(session, Charged(99))
    raise ValueError("not yet")


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """As many suites have it: all of a test is in one transaction that is rolled back."""
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode="create_savepoint") as made:
            yield made
        transaction.rollback()


def test_messages_compare_with_events_flushed_or_not(session: Session):
    outbox.add(session, Placed(1), key="order-1")
    session.flush()
    outbox.add(session, Placed(2), headers={"tenant": "a"})
    found = outbox_messages(session)
    assert found == [Placed(1), Placed(2)]
    assert found != [Placed(1), Placed(3)]
    assert found != [Placed(1), Invoiced(2)]
    assert found != [{"number": 1}, Placed(2)]
    assert found.of(Placed)[:1] == [Placed(1)]
    assert found.of("kit.Invoiced") == []
    assert repr(found[1]) == """<kit.Placed {"number":2} tenant='a'>"""
    assert found.one(Placed(2), headers={"tenant": "a"}).type == "kit.Placed"


def test_what_was_rolled_back_is_not_there(session: Session):
    with session.begin_nested() as savepoint:
        outbox.add(session, Placed(1))
        savepoint.rollback()
    assert outbox_messages(session) == []


def test_one_says_what_is_there(session: Session):
    outbox.add(session, Placed(1), key="order-1")
    with pytest.raises(
        AssertionError, match=r"0 messages are Placed\(number=2\), key='b'.*\n  <kit\.Placed \{\"number\":1\} key="
    ):
        outbox_messages(session).one(Placed(2), key="b")


def test_a_delivered_event_is_handled_once(session: Session):
    message = message_of(Placed(1), key="order-1")
    assert deliver(session, invoice, message) is Outcome.PROCESSED
    assert deliver(session, invoice, message) is Outcome.DUPLICATE
    assert deliver(session, invoice, Placed(2)) is Outcome.PROCESSED
    assert outbox_messages(session).of(Invoiced) == [Invoiced(1), Invoiced(2)]
    assert outbox_messages(session)[0].message.causation_id == message.id


def test_every_version_and_name_of_an_event_is_delivered(session: Session):
    SEEN.clear()
    assert (message_of(Packed(7)).version, message_of(Packed(7), version=1).version) == (2, 1)
    assert deliver(session, pack, Packed(7)) is Outcome.PROCESSED
    outbox.add(session, Packed(8))
    outbox.add(session, Message(id="old", type="Wrapped", payload=b'{"number":9}'))
    assert [each.type for each in deliver_all(session, pack)] == ["Packed", "Wrapped"]
    assert list(SEEN) == [Packed(7), Packed(8), Packed(9)]


def test_a_failure_is_raised_and_leaves_nothing_and_what_was_there_stays(session: Session):
    outbox.add(session, Placed(7))
    with pytest.raises(ValueError, match="not yet"):
        deliver(session, fail, Invoiced(1))
    assert outbox_messages(session) == [Placed(7)]


def test_all_that_comes_of_a_message_is_delivered(session: Session):
    outbox.add(session, Placed(1))
    assert deliver_all(session, [invoice]) == [Placed(1)]
    assert outbox_messages(session) == [Invoiced(1), Charged(1)]  # without a handler, and for another destination


def test_handlers_of_modules_are_found_and_an_error_leaves_its_message(session: Session):
    outbox.add(session, Placed(1))
    with pytest.raises(ValueError, match="not yet"):
        deliver_all(session, sys.modules[__name__])
    assert outbox_messages(session) == [Invoiced(1), Charged(1)]


def test_a_delayed_message_is_due_when_the_time_has_come(session: Session):
    due = datetime.now(UTC) + timedelta(days=1)
    outbox.add(session, Placed(1), deliver_at=due)
    assert deliver_all(session, invoice) == []
    assert outbox_messages(session).one(Placed(1), due_at=due)
    assert deliver_all(session, invoice, now=due) == [Placed(1)]


def test_a_circle_is_named(session: Session, monkeypatch: pytest.MonkeyPatch):
    @inbox_handler("kit.Circle")
    def circle(session: Session, event: Invoiced) -> None:
        outbox.add(session, Placed(event.number))

    monkeypatch.setattr(messages, "LIMIT", 10)
    outbox.add(session, Placed(1))
    with pytest.raises(AssertionError, match=r"after 10 of them, of these types: kit\.Invoiced, kit\.Placed$"):
        deliver_all(session, [invoice, circle])


async def test_with_an_async_session(async_engine: AsyncEngine):
    @inbox_handler("kit.InvoiceAsync")
    async def invoice_async(session: AsyncSession, event: Placed, message: Message) -> None:
        if (await session.scalar(select(func.length(message.id)))) is not None:
            outbox.add(session, Invoiced(event.number))

    async with AsyncSession(async_engine) as session:
        outbox.add(session, Placed(1))
        assert await session.run_sync(outbox_messages) == [Placed(1)]
        assert await session.run_sync(deliver_all, [invoice_async]) == [Placed(1)]
        assert await session.run_sync(deliver, invoice_async, Placed(2)) is Outcome.PROCESSED
        assert await session.run_sync(outbox_messages) == [Invoiced(1), Invoiced(2)]


def test_a_handler_that_commits_or_rejects_is_told(session: Session):
    @inbox_handler("kit.Commit")
    def commit(session: Session, event: Placed) -> None:
        session.commit()

    @inbox_handler("kit.Reject")
    def reject(session: Session, event: Placed) -> None:
        raise Reject("no such order")

    with pytest.raises(Reject):
        deliver(session, reject, Placed(1))
    with pytest.raises(TransactionRequired):
        deliver(session, commit, Placed(1))


def test_an_event_of_another_type_is_refused(session: Session):
    with pytest.raises(ConfigurationError, match=r"'kit\.Invoice' handles 'kit\.Placed'; the event is 'kit\.Invoiced'"):
        deliver(session, invoice, Invoiced(1))


async def test_an_async_session_is_told_how(async_engine: AsyncEngine):
    async with AsyncSession(async_engine) as session:
        with pytest.raises(TypeError, match=r"await session\.run_sync\(outbox_messages\)$"):
            outbox_messages(session)  # type: ignore[arg-type]
