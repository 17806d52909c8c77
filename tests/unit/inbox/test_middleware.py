"""Middleware: around the handler in its transaction, plain or async, and what it must not hide."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Outcome, inbox, inbox_handler
from outboxkit.errors.failures import traceback_of
from outboxkit.inbox import Context, Wiring
from tests.unit.inbox.middlewares import ASYNC, KINDS, PLAIN, book_of, deliver, done, told
from tests.unit.shop import OrderConfirmed, count, effects, message


@pytest.mark.parametrize(
    ("handler", "kinds"), [(PLAIN, [PLAIN] * 3), *((ASYNC, each) for each in itertools.product(*[(PLAIN, ASYNC)] * 3))]
)
async def test_the_first_one_is_outermost_whatever_the_kinds(
    async_engine: AsyncEngine, database_url: str, handler: str, kinds: list[str]
):
    outer, *inner = [told(str(number), kind) for number, kind in enumerate(kinds)]
    (wired,) = Wiring(middleware=[outer]).prepare([book_of(handler, *inner)])
    assert await deliver(async_engine, wired) is Outcome.PROCESSED
    assert done(database_url) == ["0 begins", "1 begins", "2 begins", "handled", "2 ends", "1 ends", "0 ends"]
    assert await deliver(async_engine, wired) is Outcome.DUPLICATE
    assert count(database_url, effects) == 7


def test_it_serves_a_synchronous_session(engine: Engine, database_url: str):
    with Session(engine) as session, session.begin():
        inbox.run_once(session, message(), book_of(PLAIN, told("0", PLAIN)))
    assert done(database_url) == ["0 begins", "handled", "0 ends"]


@pytest.mark.parametrize(("kind", "handler"), KINDS)
async def test_it_knows_the_call(async_engine: AsyncEngine, kind: str, handler: str):
    contexts: list[Context[Any]] = []

    @contextmanager
    def look(context: Context[Any]) -> Iterator[None]:
        contexts.append(context)
        yield

    @asynccontextmanager
    async def look_async(context: Context[Any]) -> AsyncIterator[None]:
        contexts.append(context)
        yield

    await deliver(async_engine, book_of(handler, look if kind == PLAIN else look_async), attempt=3)
    (context,) = contexts
    assert (context.handler, context.attempt, context.message) == ("Book", 3, message())
    assert context.event == OrderConfirmed(7, context.event.total)
    with pytest.raises(ConfigurationError, match=r"no resource is a .*AsyncEngine: the lifespan gave none"):
        context.resource(AsyncEngine)


def test_async_middleware_of_a_plain_handler_is_refused_at_the_start():
    wanted = r"middleware tests.*told.<locals>.awaiting is async, and handler 'Book' a plain def"
    with pytest.raises(ConfigurationError, match=wanted):
        inbox.handler_of(book_of(PLAIN, told("", ASYNC)))
    with pytest.raises(ConfigurationError, match=wanted):
        Wiring(middleware=[told("", ASYNC)]).prepare([book_of(PLAIN)])


def test_a_generator_is_refused_with_its_decorator():
    def plain(context: Context[Session]) -> Iterator[None]:
        yield

    async def awaiting(context: Context[AsyncSession]) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="plain has a yield: put @contextmanager above it"):
        Wiring(middleware=[plain])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="awaiting has a yield: put @asynccontextmanager above it"):
        inbox_handler("Wrong", middleware=[awaiting])  # type: ignore[list-item]


@pytest.mark.parametrize(("kind", "handler"), KINDS)
async def test_a_batch_has_a_call_for_each_message(
    async_engine: AsyncEngine, database_url: str, kind: str, handler: str
):
    function = book_of(handler, told("one", kind))
    batched = inbox_handler("Book", batch=True, middleware=[told("one", kind)])(function)
    entries = [inbox.Entry.of(message(id=id_), inbox.handler_of(batched)) for id_ in ("a", "b", "a")]
    async with AsyncSession(async_engine) as session, session.begin():
        assert await session.run_sync(inbox.run_batch, entries) == ["processed", "processed", "duplicate"]
    assert done(database_url) == ["one begins", "handled", "one ends"] * 2


@pytest.mark.parametrize(("kind", "handler"), KINDS)
async def test_the_traceback_begins_in_the_handler(async_engine: AsyncEngine, kind: str, handler: str):
    with pytest.raises(ZeroDivisionError) as raised:
        await deliver(async_engine, book_of(handler, told("outer", kind), fails=ZeroDivisionError("by 0")))
    _, *lines = traceback_of(raised.value).splitlines()
    assert "in book" in lines[0]
    assert len(lines) == 3
