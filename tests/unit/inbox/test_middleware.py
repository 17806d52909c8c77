"""Middleware: around the handler in its transaction, plain or async. It hides nothing, and fails if it is misused."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Outcome, Reject, Retry, TransactionRequired, inbox, inbox_handler, tables
from outboxkit.errors.failures import traceback_of
from outboxkit.inbox import Context, Wiring
from tests.unit.shop import OrderConfirmed, count, effects, message, rows

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


def returns_nothing(context: Context[Session]) -> None: ...


@contextmanager
def yields_never(context: Context[Session]) -> Iterator[None]:
    return
    yield


@contextmanager
def yields_twice(context: Context[Session]) -> Iterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    ("middleware", "error", "text"),
    [
        (returns_nothing, ConfigurationError, "returns_nothing returned NoneType, which is not a context manager"),
        (yields_never, RuntimeError, "didn't yield"),
        (yields_twice, RuntimeError, "didn't stop"),
    ],
)
@pytest.mark.parametrize("kind", [PLAIN, ASYNC])
async def test_a_handler_is_called_once_or_the_message_has_failed(
    async_engine: AsyncEngine, database_url: str, middleware: Any, error: type[Exception], text: str, kind: str
):
    with pytest.raises(error, match=text):
        await deliver(async_engine, book_of(kind, told("outer", PLAIN), middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@contextmanager
def swallows(context: Context[Session]) -> Iterator[None]:
    with suppress(BaseException):
        yield


@asynccontextmanager
async def swallows_async(context: Context[AsyncSession]) -> AsyncIterator[None]:
    with suppress(BaseException):
        yield


@pytest.mark.parametrize(
    "error", [Retry("later", after=5), Reject("no"), ZeroDivisionError("by 0"), asyncio.CancelledError()], ids=repr
)
@pytest.mark.parametrize("kinds", KINDS)
async def test_what_a_handler_raises_cannot_be_swallowed(
    async_engine: AsyncEngine, database_url: str, kinds: tuple[str, str], error: BaseException
):
    kind, handler = kinds
    middleware = swallows if kind == PLAIN else swallows_async
    with pytest.raises(type(error)) as raised:
        await deliver(async_engine, book_of(handler, middleware, fails=error))
    assert raised.value is error
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@contextmanager
def translates(context: Context[Session]) -> Iterator[None]:
    try:
        yield
    except ZeroDivisionError as error:
        raise Reject("cannot be divided") from error


@contextmanager
def raises(context: Context[Session]) -> Iterator[None]:
    raise Retry("not today", after=60)
    yield


@contextmanager
def raises_afterwards(context: Context[Session]) -> Iterator[None]:
    yield
    raise Retry("not today", after=60)


@pytest.mark.parametrize(("middleware", "error"), [(translates, Reject), (raises, Retry), (raises_afterwards, Retry)])
@pytest.mark.parametrize("kind", [PLAIN, ASYNC])
async def test_what_it_raises_is_the_failure_of_the_message(
    async_engine: AsyncEngine, database_url: str, middleware: Any, error: type[Exception], kind: str
):
    fails = ZeroDivisionError if middleware is translates else None
    with pytest.raises(error):
        await deliver(async_engine, book_of(kind, told("outer", PLAIN), middleware, fails=fails))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@contextmanager
def commits(context: Context[Session]) -> Iterator[None]:
    yield
    context.session.commit()


@asynccontextmanager
async def commits_async(context: Context[AsyncSession]) -> AsyncIterator[None]:
    await context.session.commit()
    yield


@pytest.mark.parametrize("middleware", [commits, commits_async], ids=lambda each: each.__name__)
async def test_it_cannot_commit(async_engine: AsyncEngine, database_url: str, middleware: Any):
    with pytest.raises(TransactionRequired, match="'Book' ended the transaction"):
        await deliver(async_engine, book_of(ASYNC, middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@pytest.mark.parametrize("middleware", [swallows, swallows_async, told("slow", ASYNC)])
async def test_it_is_inside_the_timeout(async_engine: AsyncEngine, database_url: str, middleware: Any):
    @inbox_handler("Waits", timeout=0.05, middleware=[middleware])
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"handler 'Waits' took longer than 0\.05 s"):
        await deliver(async_engine, waits)
    assert asyncio.current_task().cancelling() == 0
    assert count(database_url, effects) == 0
