"""`outbox.add` on a connection that commits each statement: refused before any row is written."""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, func, select
from sqlalchemy.orm import Session, registry

import outboxkit
from outboxkit import TransactionRequired, outbox, tables

ORDERS = Table("autocommit_orders", MetaData(), Column("id", Integer, primary_key=True))
REFUSED = "the connection has isolation level AUTOCOMMIT: a rollback would not take the message back. Use an engine"
AUTOCOMMIT: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}


class Order:
    """The application's own row."""


registry().map_imperatively(Order, ORDERS)


@outboxkit.event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@pytest.fixture(autouse=True)
def orders(engine: Engine) -> None:
    ORDERS.create(engine)


def kept(engine: Engine) -> tuple[int, int]:
    with engine.connect() as connection:
        return tuple(connection.scalar(select(func.count()).select_from(table)) for table in (ORDERS, tables.outbox))


def assert_refused(session: Any) -> None:
    def add() -> None:
        session.add(Order())
        outbox.add(session, Ordered(1))
        session.flush()

    with pytest.raises(TransactionRequired, match=REFUSED):
        add()
    session.rollback()


def test_an_engine_in_autocommit_mode_is_refused(engine: Engine):
    made = engine.execution_options(**AUTOCOMMIT)
    for session in (Session(made), Session(binds={tables.outbox: made, Order: made})):
        with session:
            assert_refused(session)
    assert kept(engine) == (0, 0)


def test_a_driver_in_autocommit_mode_is_refused_too(engine: Engine):
    """Nothing of SQLAlchemy's knows of it: it is found at the flush, before the business rows are written."""
    for where in ("connect", "checkout"):
        made = create_engine(engine.url)

        @event.listens_for(made, where)
        def _set(driver_connection: Any, *_: object, engine: Engine = made) -> None:
            name = "isolation_level" if engine.dialect.name == "sqlite" else "autocommit"
            setattr(driver_connection, name, None if name == "isolation_level" else True)

        with Session(made) as session:
            session.add(Order())
            outbox.add(session, Ordered(1))
            for _ in range(2):
                with pytest.raises(TransactionRequired, match=REFUSED):
                    session.commit()
            session.rollback()
        made.dispose()
    assert kept(engine) == (0, 0)


def test_a_message_is_not_taken_back_outside_a_transaction_either(engine: Engine):
    with Session(engine) as session, session.begin():
        message = outbox.add(session, Ordered(1))
    made = engine.execution_options(**AUTOCOMMIT)
    with Session(made) as session, pytest.raises(TransactionRequired, match=REFUSED):
        outbox.cancel(session, message.id)
    assert kept(engine) == (0, 1)


def test_a_session_that_was_in_autocommit_mode_once_may_be_used_later(engine: Engine):
    with Session(engine) as session:
        session.connection(execution_options=AUTOCOMMIT)
        assert_refused(session)
        session.add(Order())
        outbox.add(session, Ordered(1))
        session.commit()
    assert kept(engine) == (1, 1)


def test_a_driver_of_sqlite_that_is_told_begin_has_transactions(sqlite_url: str):
    made = create_engine(sqlite_url, **AUTOCOMMIT)

    @event.listens_for(made, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with Session(made) as session:
        outbox.add(session, Ordered(1))
        session.flush()
        session.rollback()
        outbox.add(session, Ordered(2))
        session.commit()
    with made.connect() as connection:
        assert list(connection.scalars(select(tables.outbox.c.payload))) == [b'{"number":2}']
    made.dispose()
