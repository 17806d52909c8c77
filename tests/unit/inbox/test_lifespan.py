"""The lifespan of a consumer: resources from its start to its end."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import LifespanError
from outboxkit.inbox import Context, Wiring
from tests.unit.inbox.test_wiring import GOT, Clock, Mailer, call, deliver, mails, mails_async


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    GOT.clear()


@asynccontextmanager
async def lifespan() -> AsyncIterator[Mailer]:
    GOT.append("start")
    yield Mailer("lifespan")
    GOT.append("end")


@asynccontextmanager
async def lifespan_of_two() -> AsyncIterator[Mapping[Any, Any]]:
    yield {Mailer: Mailer("one"), Clock: Clock()}


async def test_what_a_lifespan_yields_is_given_by_its_type(async_engine: AsyncEngine):
    async with Wiring(lifespan=lifespan).running([mails, mails_async]) as handlers:
        for handler in handlers:
            await deliver(async_engine, handler)
    start, first, second, end = GOT
    assert (start, first.name, end) == ("start", "lifespan", "end")
    assert first is second


async def test_a_dict_has_resources_by_type_and_the_context_has_them_too(async_engine: AsyncEngine):
    @contextmanager
    def looks(context: Context[Session]) -> Iterator[None]:
        GOT.append(context.resource(Clock))
        yield

    wiring = Wiring(lifespan=lifespan_of_two, middleware=[looks])
    clock, mailer = await call(async_engine, mails, wiring)
    assert (type(clock), mailer.name) == (Clock, "one")


async def test_an_error_at_the_start_or_at_the_end_is_named():
    @asynccontextmanager
    async def no_start() -> AsyncIterator[None]:
        raise ConnectionRefusedError("nobody at port 1")
        yield

    @asynccontextmanager
    async def no_end() -> AsyncIterator[None]:
        yield
        raise ConnectionRefusedError("nobody at port 1")

    for function, when in ((no_start, "start"), (no_end, "end")):
        with pytest.raises(
            LifespanError, match=rf"no_{when} failed at its {when}: ConnectionRefusedError: nobody"
        ) as raised:
            async with Wiring(lifespan=function).running([]):
                pass
        assert isinstance(raised.value.__cause__, ConnectionRefusedError)


async def test_it_sees_the_error_of_its_consumer_and_cannot_swallow_it():
    @asynccontextmanager
    async def swallows() -> AsyncIterator[None]:
        try:
            yield
        except ZeroDivisionError as error:
            GOT.append(error)

    with pytest.raises(ZeroDivisionError) as raised:
        async with Wiring(lifespan=swallows).running([]):
            raise ZeroDivisionError
    (seen,) = GOT
    assert seen is raised.value
