"""Many messages in one transaction: the same outcome as one by one, or nothing at all."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Column, Engine, Integer, String, Table, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, registry

from outboxkit import ConfigurationError, DecodeError, Outcome, inbox_handler, outbox, tables
from outboxkit.inbox import BatchEntryFailed, Entry, handler_of, run_batch
from outboxkit.message import current_handling
from tests.unit.shop import NOW, OrderConfirmed, count, effects, message, metadata, rows

PROCESSED, DUPLICATE = Outcome.PROCESSED, Outcome.DUPLICATE
one_of_a_kind = Table(
    "one_of_a_kind", metadata, Column("id", Integer, primary_key=True), Column("what", String, unique=True)
)


class Kind:
    def __init__(self, what: str) -> None:
        self.what = what


registry().map_imperatively(Kind, one_of_a_kind)


@inbox_handler("Book", batch=True)
def book(session: Session, event: OrderConfirmed, message) -> None:
    session.execute(insert(effects).values(what=f"book {message.id}"))
    outbox.add(session, event, key=message.id)


@inbox_handler("Ship", batch=True)
async def ship(session: AsyncSession, event: OrderConfirmed, message) -> None:
    await session.execute(insert(effects).values(what=f"ship {message.id}"))
    outbox.add(session, event, key=message.id)


def entry(handler: Callable[..., object], id_: str, **more: object) -> Entry:
    return Entry.of(message(id=id_, correlation_id=f"story of {id_}"), handler_of(handler), **more)


def test_an_entry_is_decoded_once():
    found = entry(book, "m", attempt=3, accepted_at=NOW)
    assert found.event == OrderConfirmed(7, found.event.total)
    assert (found.key, found.attempt, found.accepted_at) == (("Book", "m"), 3, NOW)
    with pytest.raises(DecodeError, match="order_id"):
        Entry.of(message(payload=b"{}"), handler_of(book))


async def test_each_message_that_is_added_has_its_own_cause(async_engine: AsyncEngine, database_url: str):
    async with AsyncSession(async_engine) as session, session.begin():
        await session.run_sync(run_batch, [entry(handler, id_) for id_ in ("b", "a") for handler in (book, ship)])
        outbox.add(session, OrderConfirmed(1, 1))
    found = [(row["key"], row["causation_id"], row["correlation_id"]) for row in rows(database_url, tables.outbox)]
    of_a, of_b = ("a", "a", "story of a"), ("b", "b", "story of b")
    assert found == [of_b, of_b, of_a, of_a, (None, None, None)]
    assert current_handling() is None


def test_the_row_says_what_run_once_says(engine: Engine, database_url: str):
    with Session(engine) as session, session.begin():
        run_batch(session, [entry(book, "a", attempt=4), entry(book, "a", attempt=5), entry(book, "b")])
    found = [(row["message_id"], row["type"], row["attempts"]) for row in rows(database_url, tables.inbox)]
    assert found == [("a", "OrderConfirmed", 4), ("b", "OrderConfirmed", 1)]


async def test_a_handler_that_takes_too_long_is_the_failed_entry(async_engine: AsyncEngine, database_url: str):
    @inbox_handler("Slow", batch=True, timeout=0.05)
    async def slow(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.Event().wait()

    with pytest.raises(BatchEntryFailed) as raised:
        async with AsyncSession(async_engine) as session, session.begin():
            await session.run_sync(run_batch, [entry(ship, "a"), entry(slow, "a"), entry(ship, "b")])
    assert raised.value.index == 1
    assert "handler 'Slow' took longer than 0.05 s" in str(raised.value.__cause__)
    assert count(database_url, tables.inbox) == 0


async def test_a_stop_is_nobodys_fault(async_engine: AsyncEngine, database_url: str):
    running = asyncio.Event()

    @inbox_handler("Waits", batch=True)
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        running.set()
        await asyncio.Event().wait()

    async def batch() -> None:
        async with AsyncSession(async_engine) as session, session.begin():
            await session.run_sync(run_batch, [entry(ship, "a"), entry(waits, "a")])

    task = asyncio.create_task(batch())
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0


def test_an_error_of_the_flush_is_the_handlers_that_left_the_row(engine: Engine, database_url: str):
    @inbox_handler("Unique", batch=True)
    def unique(session: Session, event: OrderConfirmed) -> None:
        session.add(Kind("the same"))

    with pytest.raises(BatchEntryFailed) as failed, Session(engine) as session, session.begin():
        run_batch(session, [entry(unique, id_) for id_ in "abc"])
    assert (failed.value.index, type(failed.value.__cause__)) == (1, IntegrityError)
    assert count(database_url, tables.inbox) == 0


def test_a_handler_that_may_not_run_again_is_refused(engine: Engine, database_url: str):
    @inbox_handler("Mails")
    def mails(session: Session, event: OrderConfirmed) -> None: ...

    refused = pytest.raises(ConfigurationError, match=r"@inbox_handler\('Mails', batch=True\), or use run_once")
    with refused, Session(engine) as session, session.begin():
        run_batch(session, [entry(book, "a"), entry(mails, "a")])
    assert count(database_url, tables.inbox) == 0
