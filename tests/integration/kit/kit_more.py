"""Handlers that touch another database, a broker, or go on after an error: wrong ones, and right twins."""

import asyncio
import os
import sqlite3
import threading
from contextlib import closing, suppress
from typing import Any

import asyncpg
import pika
import psycopg
import psycopg2
from sqlalchemy import Engine, text, update
from sqlalchemy import event as listening
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, inbox_handler
from tests.integration.kit import kit_counters, kit_outside
from tests.integration.kit.kit_handlers import Customer, Invoice, Ordered, Receipt, add_receipt

ELSEWHERE: Any = None
"""An engine of the application, for another database."""
FILE = BROKER = POSTGRESQL = ""
SENDALL: Any = None
"""The method of a connection that is open, as py-amqp keeps it."""


@inbox_handler("wrong.OtherDatabase")
def wrong_other_database(session: Session, event: Ordered) -> None:
    engine: Engine = ELSEWHERE
    with engine.begin() as connection:
        connection.execute(text("UPDATE stats SET n = n + 1"))


@inbox_handler("wrong.RawConnection")
def wrong_raw_connection(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    with closing(ELSEWHERE.raw_connection()) as connection:
        connection.cursor().execute("INSERT INTO stats VALUES (1)")
        connection.commit()


@inbox_handler("wrong.Sqlite")
def wrong_sqlite(session: Session, event: Ordered) -> None:
    with sqlite3.connect(FILE) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS seen (n)")
    connection.close()


@inbox_handler("wrong.Psycopg")
def wrong_psycopg(session: Session, event: Ordered) -> None:
    psycopg.connect(POSTGRESQL).close()


@inbox_handler("wrong.Psycopg2")
def wrong_psycopg2(session: Session, event: Ordered) -> None:
    psycopg2.connect(POSTGRESQL).close()


@inbox_handler("wrong.Asyncpg")
async def wrong_asyncpg(session: AsyncSession, event: Ordered) -> None:
    connection = await asyncpg.connect(POSTGRESQL)
    await connection.close()


@inbox_handler("right.ReadElsewhere")
def right_read_elsewhere(session: Session, event: Ordered) -> None:
    with ELSEWHERE.connect() as connection:
        add_receipt(session, event, number=connection.execute(text("SELECT 5")).scalar_one())


@inbox_handler("wrong.CaughtWithAStatementBehind")
def wrong_caught_with_a_statement_behind(session: Session, event: Ordered) -> None:
    try:
        session.add(Invoice(order_id=event.order_id))
        session.flush()
    except IntegrityError:
        pass
    session.execute(update(Customer).values(orders=Customer.orders + 1))


def publish(message_id: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(BROKER)) as connection:
        channel = connection.channel()
        properties = pika.BasicProperties(message_id=message_id)
        channel.basic_publish("", "kit-nowhere", b"{}", properties)


@inbox_handler("wrong.Broker")
def wrong_broker(session: Session, event: Ordered) -> None:
    publish(str(event.order_id))


@inbox_handler("right.BrokerWithTheMessagesId")
def right_broker_with_the_messages_id(session: Session, event: Ordered, message: Message) -> None:
    publish(message.id)


@inbox_handler("wrong.OpenConnection")
def wrong_open_connection(session: Session, event: Ordered) -> None:
    SENDALL(b"task")


@inbox_handler("wrong.CancellationSwallowed")
async def wrong_cancellation_swallowed(session: AsyncSession, event: Ordered) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
        session.add(Receipt(order_id=event.order_id, total=event.total))


@inbox_handler("right.CancellationRaised")
async def right_cancellation_raised(session: AsyncSession, event: Ordered) -> None:
    try:
        await asyncio.sleep(0)
        session.add(Receipt(order_id=event.order_id, total=event.total))
    except asyncio.CancelledError:
        session.add(Receipt(order_id=0, total=event.total))
        raise


@inbox_handler("wrong.CountsElsewhere")
def wrong_counts_elsewhere(session: Session, event: Ordered) -> None:
    kit_counters.bump()


@inbox_handler("wrong.Environment")
def wrong_environment(session: Session, event: Ordered) -> None:
    os.environ["KIT_HANDLED"] = os.environ.get("KIT_HANDLED", "") + "x"


@inbox_handler("wrong.TemporaryTable")
def wrong_temporary_table(session: Session, event: Ordered) -> None:
    session.execute(text("CREATE TEMP TABLE basket (n integer)"))
    add_receipt(session, event)


@inbox_handler("wrong.MailAfterRollback")
def wrong_mail_after_rollback(session: Session, event: Ordered) -> None:
    session.execute(update(Customer).values(orders=Customer.orders + 1))
    listening.listen(session, "after_rollback", lambda _: kit_outside.send_mail("ops@example.com"), once=True)


@inbox_handler("wrong.UndoneByHand")
def undone_by_hand(session: Session, event: Ordered) -> None:
    """A test allows its statements by `outside`: it undoes them itself, if its transaction is rolled back."""
    session.add(Invoice(order_id=event.order_id))
    bind = session.get_bind()

    def act(statement: str) -> None:
        with bind.connect() as connection, connection.begin():
            connection.execute(text(statement), {"order": event.order_id})

    act("INSERT INTO receipts (order_id, total) VALUES (:order, 1)")
    undo = "DELETE FROM receipts WHERE order_id = :order"
    listening.listen(session, "after_rollback", lambda _: act(undo), once=True)


@inbox_handler("wrong.Hangs")
def wrong_hangs(session: Session, event: Ordered) -> None:
    threading.Event().wait(60)


WRONG = [each for name, each in list(globals().items()) if name.startswith("wrong_") and name != "wrong_hangs"]
RIGHT = [each for name, each in list(globals().items()) if name.startswith("right_")]
