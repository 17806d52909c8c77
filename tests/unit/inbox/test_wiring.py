"""Wiring: values for the parameters of handlers by type, from the lifespan of their consumer."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, NewType

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, LifespanError, Message, Outcome, inbox, inbox_handler
from outboxkit.inbox import Context, Wiring
from tests.unit.shop import OrderConfirmed, message

Region = NewType("Region", str)


class Mailer:
    def __init__(self, name: str = "mailer") -> None:
        self.name = name


class Clock: ...


GOT: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    GOT.clear()


@inbox_handler("Mails")
def mails(session: Session, event: OrderConfirmed, mailer: Mailer) -> None:
    GOT.append(mailer)


@inbox_handler("MailsAsync")
async def mails_async(session: AsyncSession, event: OrderConfirmed, message: Message, *, mailer: Mailer) -> None:
    GOT.append(mailer)


async def deliver(engine: AsyncEngine, handler: Any) -> Outcome:
    async with AsyncSession(engine) as session, session.begin():
        return await session.run_sync(inbox.run_once, message(), handler)


async def call(engine: AsyncEngine, function: Any, wiring: Wiring, resources: Any = None) -> list[Any]:
    """What the handler got when it was called, with the resources of the wiring's lifespan or with these."""
    if resources is None:
        async with wiring.running([function]) as (handler,):
            await deliver(engine, handler)
    else:
        (handler,) = wiring.prepare([function], resources)
        await deliver(engine, handler)
    return GOT


def in_region(session: Session, event: OrderConfirmed, region: Region) -> None:
    GOT.append(region)


def in_annotated(session: Session, event: OrderConfirmed, region: Annotated[str, "region"]) -> None:
    GOT.append(region)


def in_optional(session: Session, event: OrderConfirmed, region: Region | None = None) -> None:
    GOT.append(region)


def in_default(
    session: Session, event: OrderConfirmed, region: Region = Region("home"), *, tries: int = 3, more="x"
) -> None:
    GOT.append((region, tries, more))


NORTH: Any = {Region: Region("north"), Annotated[str, "region"]: "north"}
BY_TYPE: list[tuple[Any, Any, Any]] = [
    (in_region, NORTH, "north"),
    (in_annotated, NORTH, "north"),
    (in_optional, NORTH, "north"),
    (in_optional, {}, None),
    (in_default, NORTH, ("north", 3, "x")),
    (in_default, {}, ("home", 3, "x")),
]


@pytest.mark.parametrize(("function", "resources", "value"), BY_TYPE)
async def test_a_value_is_found_by_the_annotation(async_engine: AsyncEngine, function: Any, resources: Any, value: Any):
    assert await call(async_engine, inbox_handler("InRegion")(function), Wiring(), resources) == [value]


def test_an_unknown_parameter_is_refused_at_the_start():
    with pytest.raises(ConfigurationError) as raised:
        Wiring().prepare([mails], {Clock: Clock(), Annotated[Clock, "utc"]: Clock()})
    place = "tests.unit.inbox.test_wiring"
    for part in (
        f"handler 'Mails': nothing gives parameter 'mailer' of {place}.mails, of type {place}.Mailer",
        f"the lifespan gives: {place}.Clock, typing.Annotated[{place}.Clock, 'utc'].",
    ):
        assert part in str(raised.value)


async def test_a_handler_without_its_wiring_is_refused(async_engine: AsyncEngine):
    with pytest.raises(ConfigurationError, match=r"'Mails' needs a value for its parameter 'mailer': .*Wiring"):
        await deliver(async_engine, mails)


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
