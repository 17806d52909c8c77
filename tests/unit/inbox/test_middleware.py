"""Middleware: around the handler in its transaction, plain or async, and what it must not hide."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Outcome, Reject, Retry, TransactionRequired, inbox, inbox_handler, tables
from outboxkit.failures import traceback_of
from outboxkit.inbox import AsyncCall, Call, Context, Wiring
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

        def plain(call: Call, context: Context[Session]) -> None:
            assert type(context.session) is Session
            context.session.execute(insert(effects).values(what=f"{what} begins"))
            call()
            context.session.execute(insert(effects).values(what=f"{what} ends"))

        return plain

    async def awaiting(call: AsyncCall, context: Context[AsyncSession]) -> None:
        assert isinstance(context.session, AsyncSession)
        await context.session.execute(insert(effects).values(what=f"{what} begins"))
        await call()
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

    def look(call: Call, context: Context[Any]) -> None:
        contexts.append(context)
        call()

    async def look_async(call: AsyncCall, context: Context[Any]) -> None:
        contexts.append(context)
        await call()

    await deliver(async_engine, book_of(handler, look if kind == PLAIN else look_async), attempt=3)
    (context,) = contexts
    assert (context.handler, context.attempt, context.message) == ("Book", 3, message())
    assert context.event == OrderConfirmed(7, context.event.total)
    with pytest.raises(ConfigurationError, match=r"no resource is a .*AsyncEngine: the lifespan gave none"):
        context.resource(AsyncEngine)


async def test_an_object_with_an_async_call_is_async(async_engine: AsyncEngine, database_url: str):
    class Told:
        async def __call__(self, call: AsyncCall, context: Context[AsyncSession]) -> None:
            await told("object", ASYNC)(call, context)

    await deliver(async_engine, book_of(ASYNC, Told()))
    assert done(database_url) == ["object begins", "handled", "object ends"]
    with pytest.raises(ConfigurationError, match=r"Told object at .* is an async def, and handler 'Book' a plain def"):
        inbox.handler_of(book_of(PLAIN, Told()))


def test_async_middleware_of_a_plain_handler_is_refused_at_the_start():
    wanted = r"middleware tests.*told.<locals>.awaiting is an async def, and handler 'Book' a plain def"
    with pytest.raises(ConfigurationError, match=wanted):
        inbox.handler_of(book_of(PLAIN, told("", ASYNC)))
    with pytest.raises(ConfigurationError, match=wanted):
        Wiring(middleware=[told("", ASYNC)]).prepare([book_of(PLAIN)])


@pytest.mark.parametrize("wrong", ["timing", {"a": print}, 5, print, ["timing"], [None]], ids=repr)
def test_a_list_of_functions_is_accepted(wrong: Any):
    with pytest.raises(ConfigurationError, match=r"@inbox_handler\('Wrong'\): .* is accepted"):
        inbox_handler("Wrong", middleware=wrong)
    with pytest.raises(ConfigurationError, match=r"Wiring: .* is accepted"):
        Wiring(middleware=wrong)


def never(call: Call, context: Context[Session]) -> None: ...


async def never_async(call: AsyncCall, context: Context[AsyncSession]) -> None: ...


async def not_awaited(call: AsyncCall, context: Context[AsyncSession]) -> None:
    call()


def twice(call: Call, context: Context[Session]) -> None:
    call()
    call()


async def twice_async(call: AsyncCall, context: Context[AsyncSession]) -> None:
    await call()
    await call()


async def twice_at_once(call: AsyncCall, context: Context[AsyncSession]) -> None:
    await asyncio.gather(call(), call(), return_exceptions=True)


MISUSED = {
    never: r"never has returned without a call of `call\(\)`, so that the message is not handled",
    never_async: r"never_async has returned without a call of `await call\(\)`",
    not_awaited: r"not_awaited has returned without awaiting `call\(\)`",
    twice: "twice has called `call` twice",
    twice_async: "twice_async has called `call` twice",
    twice_at_once: "twice_at_once has called `call` twice",
}


@pytest.mark.parametrize("middleware", MISUSED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("outer", [PLAIN, ASYNC, None])
async def test_a_handler_is_called_once_or_the_message_has_failed(
    async_engine: AsyncEngine, database_url: str, middleware: Any, outer: str | None
):
    around = [] if outer is None else [told("outer", outer)]
    with pytest.raises(ConfigurationError, match=MISUSED[middleware]):
        await deliver(async_engine, book_of(ASYNC, *around, middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


@pytest.mark.parametrize("middleware", [never, twice], ids=lambda each: each.__name__)
def test_so_is_a_plain_one(engine: Engine, database_url: str, middleware: Any):
    with pytest.raises(ConfigurationError, match=MISUSED[middleware]), Session(engine) as session, session.begin():
        inbox.run_once(session, message(), book_of(PLAIN, middleware))
    assert count(database_url, effects) == 0


def swallows(call: Call, context: Context[Session]) -> None:
    try:
        call()
    except BaseException:  # noqa: BLE001 - the mistake
        return


async def swallows_async(call: AsyncCall, context: Context[AsyncSession]) -> None:
    try:
        await call()
    except BaseException:  # noqa: BLE001 - the mistake
        return


@pytest.mark.parametrize(
    "error", [Retry("later", after=5), Reject("no"), ZeroDivisionError("by 0"), SystemExit(3)], ids=repr
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
    assert f"swallows{'_async' * (kind == ASYNC)} has swallowed this error" in "".join(raised.value.__notes__)
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


def translates(call: Call, context: Context[Session]) -> None:
    try:
        call()
    except ZeroDivisionError as error:
        raise Reject("cannot be divided") from error


def raises(call: Call, context: Context[Session]) -> None:
    raise Retry("not today", after=60)


def raises_afterwards(call: Call, context: Context[Session]) -> None:
    call()
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


def commits(call: Call, context: Context[Session]) -> None:
    call()
    context.session.commit()


async def commits_async(call: AsyncCall, context: Context[AsyncSession]) -> None:
    await context.session.commit()
    await call()


@pytest.mark.parametrize("middleware", [commits, commits_async], ids=lambda each: each.__name__)
async def test_it_cannot_commit(async_engine: AsyncEngine, database_url: str, middleware: Any):
    with pytest.raises(TransactionRequired, match="'Book' ended the transaction"):
        await deliver(async_engine, book_of(ASYNC, middleware))
    assert count(database_url, effects) == count(database_url, tables.inbox) == 0


async def test_a_forgotten_await_of_its_session_is_a_failure(async_engine: AsyncEngine):
    async def forgets(call: AsyncCall, context: Context[AsyncSession]) -> None:
        context.session.execute(text("SELECT 1"))
        await call()

    with pytest.raises(ConfigurationError, match=r"did not await session\.execute"):
        await deliver(async_engine, book_of(ASYNC, forgets))


@pytest.mark.parametrize("middleware", [swallows, swallows_async, told("slow", ASYNC)])
async def test_it_is_inside_the_timeout(async_engine: AsyncEngine, database_url: str, middleware: Any):
    @inbox_handler("Waits", timeout=0.05, middleware=[middleware])
    async def waits(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"handler 'Waits' took longer than 0\.05 s"):
        await deliver(async_engine, waits)
    assert asyncio.current_task().cancelling() == 0
    assert count(database_url, effects) == 0


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_call_that_is_left_behind_in_a_task_is_waited_for(
    async_engine: AsyncEngine, database_url: str, ends: str
):
    async def leaves(call: AsyncCall, context: Context[AsyncSession]) -> None:
        context.session.info["task"] = asyncio.create_task(call())
        await asyncio.sleep(0)
        if ends == "raises":
            raise Reject("enough")

    def looks(call: Call, context: Context[Session]) -> None:
        try:
            call()
        finally:
            assert context.session.in_transaction()
            assert context.session.scalar(text("SELECT count(*) FROM effects")) == 1

    if ends == "raises":
        with pytest.raises(Reject):
            await deliver(async_engine, book_of(ASYNC, looks, leaves))
    else:
        await deliver(async_engine, book_of(ASYNC, looks, leaves))
    assert done(database_url) == ([] if ends == "raises" else ["handled"])


async def test_a_call_may_run_in_a_task_of_its_own(async_engine: AsyncEngine, database_url: str):
    async def limited(call: AsyncCall, context: Context[AsyncSession]) -> None:
        await asyncio.wait_for(call(), 60)

    await deliver(async_engine, book_of(ASYNC, limited))
    assert done(database_url) == ["handled"]


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
