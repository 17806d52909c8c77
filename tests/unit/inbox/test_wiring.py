"""Wiring: values for a handler's parameters by type, made for one call or for the whole time of a consumer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import ModuleType
from typing import Annotated, Any, NewType

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, Message, Outcome, inbox, inbox_handler
from outboxkit.inbox import AsyncCall, Context, Wiring, handler_of, wiring_in
from tests.unit.shop import OrderConfirmed, effects, message

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


async def call(engine: AsyncEngine, function: Any, wiring: Wiring) -> list[Any]:
    """What the handler got when it was called."""
    async with wiring.running([function]) as (handler,):
        await deliver(engine, handler)
    return GOT


async def make_async(context: Context[AsyncSession]) -> Mailer:
    return Mailer(context.handler)


@pytest.mark.parametrize("function", [mails, mails_async])
@pytest.mark.parametrize(
    "make",
    [
        Mailer,
        lambda context: Mailer(context.handler),
        partial(Mailer, "partial"),
        make_async,
    ],
)
async def test_a_provider_makes_a_value_for_each_call(async_engine: AsyncEngine, function: Any, make: Any):
    if function is mails and make is make_async:
        with pytest.raises(ConfigurationError, match=r"'Mails' is a plain def, and the provider .*make_async is async"):
            Wiring(providers={Mailer: make}).prepare([function])
        return
    (mailer,) = await call(async_engine, function, Wiring(providers={Mailer: make}))
    assert isinstance(mailer, Mailer)
    assert mailer.name in {"mailer", "partial", handler_of(function).name}


@contextmanager
def opened(context: Context[Any]) -> Iterator[Mailer]:
    GOT.append("open")
    try:
        yield Mailer()
    finally:
        GOT.append("closed")


@asynccontextmanager
async def opened_async() -> AsyncIterator[Mailer]:
    GOT.append("open")
    try:
        yield Mailer()
    finally:
        GOT.append("closed")


CLOSED = [(mails, opened), (mails_async, opened), (mails_async, opened_async)]


@pytest.mark.parametrize(("function", "make"), CLOSED)
async def test_a_context_manager_is_closed_after_the_call(async_engine: AsyncEngine, function: Any, make: Any):
    assert [
        getattr(each, "name", each) for each in await call(async_engine, function, Wiring(providers={Mailer: make}))
    ] == [
        "open",
        "mailer",
        "closed",
    ]


@pytest.mark.parametrize("make", [opened, opened_async])
async def test_it_is_closed_after_a_failure_too_inside_the_middleware(async_engine: AsyncEngine, make: Any):
    async def looks(call: AsyncCall, context: Context[AsyncSession]) -> None:
        try:
            await call()
        except ZeroDivisionError:
            GOT.append("seen")
            raise

    @inbox_handler("Fails")
    async def fails(session: AsyncSession, event: OrderConfirmed, mailer: Mailer) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await call(async_engine, fails, Wiring(providers={Mailer: make}, middleware=[looks]))
    assert GOT == ["open", "closed", "seen"]


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_provider_cannot_swallow_the_handlers_error(async_engine: AsyncEngine, kind: str):
    @contextmanager
    def swallows() -> Iterator[Mailer]:
        try:
            yield Mailer()
        except ZeroDivisionError:
            GOT.append("swallowed")

    def fails(session, event: OrderConfirmed, mailer: Mailer) -> None:
        raise ZeroDivisionError

    async def fails_async(session, event: OrderConfirmed, mailer: Mailer) -> None:
        raise ZeroDivisionError

    function = inbox_handler("Fails")(fails if kind == "plain" else fails_async)
    with pytest.raises(ZeroDivisionError):
        await call(async_engine, function, Wiring(providers={Mailer: swallows}))
    assert GOT == ["swallowed"]


async def test_what_a_provider_raises_is_the_failure_of_the_message(async_engine: AsyncEngine):
    def broken(context: Context[Session]) -> Mailer:
        context.session.execute(insert(effects).values(what="a provider may use the session"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await call(async_engine, mails, Wiring(providers={Mailer: broken}))


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


def in_last_place(session: Session, event: OrderConfirmed, region: Region, envelope: Message) -> None:
    GOT.append((region, envelope.id))


NORTH: Any = Wiring(providers={Region: lambda: Region("north"), Annotated[str, "region"]: lambda: "north"})
BY_TYPE: list[tuple[Any, Wiring, Any]] = [
    (in_region, NORTH, "north"),
    (in_annotated, NORTH, "north"),
    (in_optional, NORTH, "north"),
    (in_optional, Wiring(), None),
    (in_default, NORTH, ("north", 3, "x")),
    (in_default, Wiring(), ("home", 3, "x")),
    (in_last_place, NORTH, ("north", message().id)),
]


@pytest.mark.parametrize(("function", "wiring", "value"), BY_TYPE)
async def test_a_value_is_found_by_the_annotation(async_engine: AsyncEngine, function: Any, wiring: Wiring, value: Any):
    assert await call(async_engine, inbox_handler("InRegion")(function), wiring) == [value]


def test_an_unknown_parameter_is_refused_at_the_start():
    wiring = Wiring(providers={Clock: Clock, Annotated[Clock, "utc"]: Clock}, lifespan=None)
    with pytest.raises(ConfigurationError) as raised:
        wiring.prepare([mails])
    place = "tests.unit.inbox.test_wiring"
    for part in (
        f"handler 'Mails': nothing provides parameter 'mailer' of {place}.mails, of type {place}.Mailer",
        f"provided is: {place}.Clock, typing.Annotated[{place}.Clock, 'utc'].",
    ):
        assert part in str(raised.value)


async def test_a_handler_without_its_wiring_is_refused(async_engine: AsyncEngine):
    with pytest.raises(ConfigurationError, match=r"'Mails' needs a value for its parameter 'mailer': .*Wiring"):
        await deliver(async_engine, mails)


async def without_yield() -> None: ...


async def undecorated() -> AsyncIterator[None]:
    yield


def generator() -> Iterator[Mailer]:
    yield Mailer()


def of_two(context: Any, more: Any) -> Mailer:
    return Mailer()


WRONG: dict[str, dict[str, Any]] = {
    "lifespan is .*without_yield; .* is accepted": {"lifespan": without_yield},
    "lifespan is .*undecorated; .* is accepted": {"lifespan": undecorated},
    "lifespan is 5; .* is accepted": {"lifespan": 5},
    "providers is .*; a dict of functions by type is accepted": {"providers": [Mailer]},
    "the provider of .*Mailer is 5; a function is accepted": {"providers": {Mailer: 5}},
    "the provider of .*Mailer, .*generator, has a yield: put @contextmanager above it": {
        "providers": {Mailer: generator}
    },
    "undecorated, has a yield: put @asynccontextmanager above it": {"providers": {Mailer: undecorated}},
    "of_two, takes context, more; a provider takes nothing, or the context": {"providers": {Mailer: of_two}},
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_of_another_kind_is_refused(text: str):
    with pytest.raises(ConfigurationError, match=text):
        Wiring(**WRONG[text])


def module(name: str, **content: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


def test_a_wiring_is_found_in_modules_under_any_name():
    one, other = Wiring(), Wiring(middleware=[print])
    assert wiring_in([module("a", wiring=one), module("b", imported=one)]) is one
    assert wiring_in([module("a", x=1)]) == Wiring()
    with pytest.raises(ConfigurationError, match=r"a consumer has one Wiring, found a\.x and b\.y"):
        wiring_in([module("a", x=one), module("b", y=other)])


def test_wiring_adds_up():
    (first,) = Wiring(providers={Mailer: Mailer}).prepare([mails])
    (second,) = Wiring(middleware=[lambda call, context: call()]).prepare([first])
    assert (len(second.middleware), list(second.providers)) == (1, ["mailer"])


async def test_a_function_in_c_may_be_a_provider(async_engine: AsyncEngine):
    """Python knows no signature of some of them."""

    @inbox_handler("Gets")
    async def gets(session: AsyncSession, event: OrderConfirmed, region: Region) -> None:
        GOT.append(region)

    assert await call(async_engine, gets, Wiring(providers={Region: str})) == [""]
