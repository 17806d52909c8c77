"""Messages between `add` and the flush: a session keeps them, and forgets them, as it does with its own objects."""

import subprocess
import sys
import warnings
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, event, insert, text
from sqlalchemy.exc import OperationalError, PendingRollbackError, SAWarning
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session, relationship

from outboxkit import Message, outbox, tables
from outboxkit.outbox import pending
from outboxkit.outbox.pending import Draft
from tests.unit.shop import OrderConfirmed, count, effects, message, rows


class Rows(DeclarativeBase):
    pass


class Order(Rows):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(default="")
    lines: Mapped[list["OrderLine"]] = relationship(cascade="all, delete-orphan")


class OrderLine(Rows):
    __tablename__ = "order_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))


@pytest.fixture
def engine(engine: Engine) -> Engine:
    Rows.metadata.create_all(engine)
    return engine


@pytest.fixture
def said(engine: Engine) -> list[str]:
    """The tables that are inserted into, in their order."""
    found: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _listen(*given: Any) -> None:
        if given[2].startswith("INSERT INTO "):
            found.append(given[2].split()[2])

    return found


def order(number: int) -> OrderConfirmed:
    return OrderConfirmed(number, Decimal("9.50"))


def sent(database_url: str) -> list[object]:
    return [row["message_id"] for row in rows(database_url, tables.outbox)]


@pytest.mark.parametrize("forget", ["expunge_all", "close", "rollback", "reset", "invalidate"])
def test_what_the_session_forgets_is_forgotten_and_it_can_be_used_again(
    session: Session, database_url: str, forget: str
):
    outbox.add(session, order(1))
    getattr(session, forget)()
    session.add(Order())
    session.commit()
    assert sent(database_url) == []
    added = [outbox.add(session, order(2)), outbox.add(session, order(3))]
    session.commit()
    assert sent(database_url) == [message.id for message in added]


def test_an_object_that_is_expunged_takes_its_messages_along(session: Session, database_url: str):
    outbox.add(session, order(1))
    for waiting in list(session.new):
        session.expunge(waiting)
    added = outbox.add(session, order(2))
    session.commit()
    assert sent(database_url) == [added.id]


def test_without_autoflush(engine: Engine, database_url: str):
    with Session(engine, autoflush=False) as session:
        added = outbox.add(session, order(1))
        session.execute(insert(effects).values(what="order 1"))
        assert session.new
        session.commit()
    assert sent(database_url) == [added.id]


def test_messages_are_written_behind_the_business_rows(session: Session, said: list[str]):
    """So that the row locks of the business come first, and positions are given in the order of the locks."""
    outbox.add(session, order(1))
    session.add(Order(lines=[OrderLine()]))
    outbox.add(session, order(2))
    session.commit()
    assert said == ["orders", "order_lines", "outboxkit_outbox"]


def test_a_message_goes_with_a_flush_that_has_nothing_else_to_do(session: Session, database_url: str):
    """The line belongs to no order any more, which the session finds out in its flush, and then has no work."""
    line = OrderLine()
    parent = Order(lines=[line])
    session.add(line)
    session.expunge(parent) if parent in session else None
    parent.lines.remove(line)
    added = outbox.add(session, order(1))
    session.commit()
    assert sent(database_url) == [added.id]
    assert count(database_url, OrderLine.__table__) == 0


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("name", ["before_flush", "after_flush", "before_commit"])
def test_a_listener_may_add_the_first_message_of_a_session(
    engine: Engine, database_url: str, name: str, of_class: bool
):
    class Shop(Session):
        """A class of its own, so that nothing is left behind."""

    added: list[Message] = []
    with Shop(engine) as session:

        @event.listens_for(Shop if of_class else session, name)
        def _add(*_: object) -> None:
            if len(added) < 2:
                added.append(outbox.add(session, order(2)))

        session.add(Order())
        session.commit()
        session.add(Order())
        session.commit()
    assert sent(database_url) == [message.id for message in added]
    assert len(added) == 2


def test_importing_any_module_and_using_a_session_changes_no_other_session_or_engine():
    program = """
import importlib, pkgutil, outboxkit
from dataclasses import dataclass
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

classes = (Session, AsyncSession, Engine)
before = [dict(vars(each)) for each in classes]
for module in pkgutil.walk_packages(outboxkit.__path__, "outboxkit."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
engine = create_engine("sqlite://")
outboxkit.metadata.create_all(engine)
@outboxkit.event("Placed")
@dataclass
class Placed:
    number: int
@outboxkit.inbox_handler("Handles")
def handle(session, event: Placed): pass
with Session(engine) as used, used.begin():
    outboxkit.inbox.run_once(used, outboxkit.outbox.add(used, Placed(1)), handle)
    run = outboxkit.http.ledger.begin(used, scope="s", principal=None, key="k", fingerprint=bytes(32))
    outboxkit.http.ledger.complete(used, run, outboxkit.http.ledger.Response(200))
dispatches = (Session().dispatch, create_engine("sqlite://").dispatch)
print([name for each in dispatches for name in each._event_names if list(getattr(each, name))])
assert before == [dict(vars(each)) for each in classes]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_event_of_a_mapper_may_add_to_what_is_pending(session: Session, database_url: str):
    added: list[Message] = []

    def add(_mapper: object, _connection: object, target: Order) -> None:
        opened = object_session(target)
        assert opened is not None
        added.append(outbox.add(opened, order(2)))

    event.listen(Order, "after_insert", add)
    try:
        session.add_all([Order(), Order()])
        first = outbox.add(session, order(1))
        session.commit()
        session.add(Order())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # SQLAlchemy warns of any object that is added at this point
            session.commit()
    finally:
        event.remove(Order, "after_insert", add)
    assert sent(database_url) == [first.id, *(message.id for message in added)]
    assert len(added) == 3


def test_a_flush_of_chosen_objects_loses_nothing(session: Session, database_url: str):
    chosen = Order()
    session.add(chosen)
    added = [outbox.add(session, order(1))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.flush([chosen])
    added.append(outbox.add(session, order(2)))
    session.commit()
    assert sent(database_url) == [message.id for message in added]


def test_a_write_that_fails_is_a_flush_that_fails(session: Session, database_url: str):
    session.add(Order())
    session.flush()
    session.execute(text("ALTER TABLE outboxkit_outbox RENAME TO elsewhere"))
    outbox.add(session, order(1))
    with pytest.raises(OperationalError, match="no such table: outboxkit_outbox"):
        session.flush()
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.commit()
    assert (count(database_url, Order.__table__), sent(database_url)) == (0, [])


def draft(payload: bytes) -> Draft:
    return Draft(message(payload=payload), {}, strict_key=None)


@pytest.mark.parametrize(
    ("sizes", "portions"),
    [
        ([1] * 1000, [1000]),
        ([1] * 2001, [1000, 1000, 1]),
        ([6, 10, 1], [2, 1]),
        ([20, 20, 1, 1], [1, 1, 2]),
        ([1, 20, 1], [1, 1, 1]),
    ],
)
def test_a_statement_carries_a_thousand_rows_and_sixteen_units_at_most(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], portions: list[int]
):
    monkeypatch.setattr(pending, "_BYTES_AT_ONCE", 16 if sizes and max(sizes) > 1 else 10_000)
    given = [draft(b"x" * size) for size in sizes]
    made = list(pending._portions(given))
    assert [len(portion) for portion in made] == portions
    assert [one for portion in made for one in portion] == given
