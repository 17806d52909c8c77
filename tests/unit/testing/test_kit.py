"""Parts of the test kit on a file: orders in which a handler fails, and references to numbered rows."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from outboxkit import ConfigurationError, Retry, event, inbox_handler
from outboxkit.codec import payloads
from outboxkit.inbox import handler_of
from outboxkit.testing import assert_order_does_not_matter, database, differences, once, order, outside
from outboxkit.testing.database import TrialDatabase
from outboxkit.testing.messages import message_of
from tests.unit.shop import OrderConfirmed

EVENTS = [OrderConfirmed(1, 5), OrderConfirmed(2, 5)]  # type: ignore[arg-type]


@event("Typed")
@dataclass(frozen=True)
class Typed:
    id: UUID
    amount: Decimal
    on: date


def test_another_event_has_another_id_number_or_day():
    typed = Typed(UUID(int=5), Decimal("9.90"), date(2026, 3, 1))

    @inbox_handler("Types")
    def types(session: Session, event: Typed) -> None: ...

    spec = handler_of(types)
    found = {name: payloads.decode(Typed, message.payload) for name, message in once._variants(spec, message_of(typed))}
    assert {name: getattr(other, name) for name, other in found.items()} == {
        "id": UUID(int=1),
        "amount": Decimal("9.91"),
        "on": date(2026, 3, 2),
    }


def test_a_request_that_has_the_messages_id_in_its_body_is_sent_under_a_key():
    sent = b'POST /pay HTTP/1.1\r\nhost: h\r\n\r\n{"key": "m-1"}'
    assert [key for *_, key in outside._spoken("h:80", sent, "m-1")] == ["m-1"]
    assert [key for *_, key in outside._spoken("h:80", sent, "m-2")] == [None]


class Tables(DeclarativeBase): ...


class Line(Tables):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_number: Mapped[int] = mapped_column(ForeignKey("placed.id"))


class Placed(Tables):
    __tablename__ = "placed"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]
    lines: Mapped[list[Line]] = relationship()


@inbox_handler("Places")
def places(session: Session, event: OrderConfirmed) -> None:
    session.add(Placed(what=f"order {event.order_id}", lines=[Line() for _ in range(event.order_id)]))


@inbox_handler("First")
def is_first(session: Session, event: OrderConfirmed) -> None:
    if event.order_id == 2 and not session.query(Placed).count():
        raise KeyError("no order yet")
    places(session, event)


@inbox_handler("Waits")
def waits(session: Session, event: OrderConfirmed) -> None:
    raise Retry("for ever")


@pytest.fixture
def shop(engine: Engine) -> Engine:
    Tables.metadata.create_all(engine)
    return engine


def test_numbers_that_the_file_gives_are_not_compared_nor_what_refers_to_them(shop: Engine):
    assert_order_does_not_matter([places], EVENTS, engine=shop)


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (is_first, r"handler 'First' fails if the order is OrderConfirmed\(order_id=2.*: KeyError: 'no order yet'"),
        (waits, r"handler 'Waits' still raises Retry after 2 rounds"),
    ],
)
def test_an_order_in_which_a_handler_fails_is_told(
    handler: Callable[..., Any], told: str, shop: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(order, "ROUNDS", 2)
    with pytest.raises(AssertionError, match=told):
        assert_order_does_not_matter([handler], EVENTS, engine=shop)


def test_another_database_is_refused(monkeypatch: pytest.MonkeyPatch):
    engine = create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "oracle")
    with pytest.raises(ConfigurationError, match="the engine is for 'oracle'; postgresql and sqlite are supported"):
        TrialDatabase(engine)
    engine.dispose()


def test_a_text_that_begins_like_a_year_is_no_moment_of_today():
    assert not differences._is_now("20 apples")


def test_a_payload_that_is_not_json_is_compared_as_it_is():
    assert database.document(b"\xff{") == repr(b"\xff{")
    assert database.document("\\x7b7d") == {}
