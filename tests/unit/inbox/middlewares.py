"""Handlers with middleware of either kind, for tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Outcome, inbox, inbox_handler
from outboxkit.inbox import Context
from tests.unit.shop import OrderConfirmed, effects, message, rows

PLAIN, ASYNC = "plain", "async"
KINDS = [(PLAIN, PLAIN), (PLAIN, ASYNC), (ASYNC, ASYNC)]
"""The middleware's and the handler's, without the one pair that is refused."""


def book_of(
    kind: str, *middleware: Any, fails: type[BaseException] | BaseException | None = None
) -> Callable[..., Any]:
    """A handler that writes a row, and then fails if it is to."""
    if kind == PLAIN:

        @inbox_handler("Book", middleware=middleware)
        def book(session: Session, event: OrderConfirmed) -> None:
            session.execute(insert(effects).values(what="handled"))
            if fails is not None:
                raise fails

        return book

    @inbox_handler("Book", middleware=middleware)
    async def book_async(session: AsyncSession, event: OrderConfirmed) -> None:
        await session.execute(insert(effects).values(what="handled"))
        if fails is not None:
            raise fails

    return book_async


def told(what: str, kind: str) -> Callable[..., Any]:
    """A middleware that writes a row before and after the call."""
    if kind == PLAIN:

        @contextmanager
        def plain(context: Context[Session]) -> Iterator[None]:
            assert type(context.session) is Session
            context.session.execute(insert(effects).values(what=f"{what} begins"))
            yield
            context.session.execute(insert(effects).values(what=f"{what} ends"))

        return plain

    @asynccontextmanager
    async def awaiting(context: Context[AsyncSession]) -> AsyncIterator[None]:
        assert isinstance(context.session, AsyncSession)
        await context.session.execute(insert(effects).values(what=f"{what} begins"))
        yield
        await context.session.execute(insert(effects).values(what=f"{what} ends"))

    return awaiting


async def deliver(engine: AsyncEngine, handler: Any, **more: Any) -> Outcome:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_once, message(), handler, **more)


def done(database_url: str) -> list[object]:
    return [row["what"] for row in rows(database_url, effects)]
