"""Handlers: what may be one, what may be said of it, and how they are found."""

import sys
from datetime import timedelta
from types import ModuleType
from typing import Annotated, Any

import flask
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outboxkit import ConfigurationError, inbox_handler
from outboxkit.inbox import handler_of, handlers_in
from tests.unit.shop import CustomerMoved, Line, OrderConfirmed, ParcelSent, StockChanged


@inbox_handler("Plain")
def plain(session, event: OrderConfirmed) -> None: ...


@inbox_handler("WithMessage")
async def with_message(session, event: "StockChanged", message) -> None: ...


def module(name: str, **content: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


def test_a_signature_says_everything():
    found = handler_of(plain)
    assert (found.name, found.function, found.event_type) == ("Plain", plain, OrderConfirmed)
    assert (found.takes_message, found.is_async, found.message_type) == (False, False, "OrderConfirmed")
    found = handler_of(with_message)
    assert (found.event_type, found.takes_message, found.is_async) == (StockChanged, True, True)


def test_a_session_of_either_colour_is_taken():
    @inbox_handler("Either")
    def either(session: Session | AsyncSession, event: OrderConfirmed) -> None: ...

    assert handler_of(either).name == "Either"


WRONG_TIMEOUTS = [
    0,
    -1,
    0.0,
    timedelta(0),
    timedelta(seconds=-1),
    "30",
    True,
    float("nan"),
    float("inf"),
    10**400,
    1e-9,
]


@pytest.mark.parametrize("timeout", WRONG_TIMEOUTS, ids=repr)
def test_a_timeout_is_a_time_above_zero(timeout: Any):
    with pytest.raises(ConfigurationError, match="a number of seconds or a timedelta above 0 is accepted") as raised:
        inbox_handler("Wrong", timeout=timeout)
    assert f"@inbox_handler('Wrong'): timeout is {timeout!r}" in str(raised.value)


def test_a_method_of_an_object_is_a_handler():
    class Shop:
        @inbox_handler("Method")
        def handle(self, session, event: ParcelSent) -> None: ...

    assert handler_of(Shop().handle).event_type is ParcelSent


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 256, "é" * 128, None, 5])
def test_a_name_that_no_table_can_hold_is_refused(name: Any):
    with pytest.raises(ConfigurationError, match=r'1 to 255 bytes.*as in @inbox_handler\("HandleOrder"\)'):
        inbox_handler(name)


SIGNATURE = r"it takes \(session, event\)|has no annotation|is given by its name"


def refused() -> dict[str, tuple[Any, str]]:
    """Functions that can be no handlers, and what is said of each."""

    def none(): ...
    def one(session): ...
    def four(session, event: OrderConfirmed, message, more): ...
    def keyword(session, *, event: OrderConfirmed): ...
    def several(session, *events: OrderConfirmed): ...
    def options(session, event: OrderConfirmed, **more): ...
    def by_position(session, event: OrderConfirmed, message, more: int, /): ...
    def swapped(event: OrderConfirmed, session): ...
    def nothing(session, event): ...
    def no_event(session, event: Line): ...
    def choice(session, event: OrderConfirmed | StockChanged): ...
    def many(session, event: list[OrderConfirmed]): ...
    def unknown(session, event: "Missing"): ...  # noqa: F821
    async def of_session(session: Session, event: OrderConfirmed): ...
    async def of_scoped(session: "scoped_session[Session]", event: OrderConfirmed): ...
    def of_async_session(session: AsyncSession, event: OrderConfirmed): ...
    def of_async_scoped(session: async_scoped_session[AsyncSession] | None, event: OrderConfirmed): ...
    def generator(session, event: OrderConfirmed):
        yield

    async def async_generator(session, event: OrderConfirmed):
        yield

    texts = {
        SIGNATURE: (none, one, four, keyword, several, options, by_position),
        r"swapped is annotated as an event; it takes \(session, event\)": (swapped,),
        "annotat": (nothing, no_event, choice, many, unknown),
        "annotate it as": (of_session, of_scoped, of_async_session, of_async_scoped),
        "generator": (generator, async_generator),
    }
    return {function.__name__: (function, text) for text, functions in texts.items() for function in functions}


@pytest.mark.parametrize(("function", "text"), refused().values(), ids=refused())
def test_a_function_that_can_be_no_handler_is_refused_with_its_place(function: Any, text: str):
    with pytest.raises(ConfigurationError, match=text) as raised:
        handler_of(inbox_handler("Wrong")(function))
    assert "'Wrong'" in str(raised.value)
    assert function.__qualname__ in str(raised.value)


def test_a_handler_that_is_imported_elsewhere_is_found_once():
    assert len(handlers_in([module("a", plain=plain), module("b", plain=plain, again=plain)])) == 1
    assert [handler.name for handler in handlers_in([sys.modules[__name__]])] == ["Plain", "WithMessage"]


def test_two_handlers_of_one_name_are_an_error_that_names_both():
    @inbox_handler("Plain")
    def second(session, event: CustomerMoved) -> None: ...

    with pytest.raises(ConfigurationError, match="two handlers are named 'Plain'") as raised:
        handlers_in([module("a", plain=plain), module("b", second=second)])
    for function in (plain, second):
        assert f"{function.__module__}.{function.__qualname__}" in str(raised.value)


def test_no_handler_at_all_is_an_error_that_names_the_modules():
    with pytest.raises(ConfigurationError, match=r"no handler in shop.a, shop.b: mark functions with @inbox_handler"):
        handlers_in([module("shop.a", Line=Line), module("shop.b")])


def test_a_package_without_handlers_is_told_to_name_its_module():
    with pytest.raises(
        ConfigurationError, match=r"or name the module of the package that has them, such as shop\.handlers$"
    ):
        handlers_in([module("shop", __path__=["shop"])])


def test_a_proxy_that_stands_for_nothing_is_no_handler():
    class Clients:
        current = flask.current_app

    content = {"request": flask.request, "Clients": Clients, "plain": plain}
    shop = module("a", **content)
    Clients.__module__ = "a"
    assert [handler.name for handler in handlers_in([shop])] == ["Plain"]


def test_a_plain_function_runs_in_a_thread_unless_it_says_otherwise():
    @inbox_handler("Here", in_loop=True)
    def here(session, event: OrderConfirmed) -> None: ...

    assert [handler_of(each).in_thread for each in (plain, here)] == [True, False]


def test_the_annotation_of_an_event_may_say_more():
    def handle(session, event: Annotated[OrderConfirmed, "of another service"]): ...

    assert handler_of(inbox_handler("More")(handle)).event_type is OrderConfirmed


@pytest.mark.parametrize("concurrency", [0, 1001, "2", True, 1.5])
def test_a_concurrency_is_a_number(concurrency: int):
    with pytest.raises(ConfigurationError, match=r"concurrency is .*from 1 to 1000 is accepted"):
        inbox_handler("a", concurrency=concurrency)


def test_a_batch_is_one_at_a_time_already():
    with pytest.raises(ConfigurationError, match="batch and concurrency exclude each other"):
        inbox_handler("a", batch=True, concurrency=2)
