"""`run_once`: the inbox row and the handler's work are kept together, or not at all, and once."""

import asyncio
import functools
import gzip
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import (
    ConfigurationError,
    DecodeError,
    Message,
    Outcome,
    TransactionRequired,
    event,
    inbox,
    inbox_handler,
    outbox,
    tables,
)
from outboxkit.codec.payloads import LARGE
from outboxkit.inbox import handler_of
from outboxkit.inbox.run_once import _warned, event_for, payload_crc, recall
from outboxkit.message import Handling, current_handling
from tests.unit.shop import OrderConfirmed, count, effects, message, rows

ORDER = message(correlation_id="story")


@inbox_handler("Sync")
def work(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("Async")
async def async_work(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what=f"order {event.order_id}"))


def inbox_rows(database_url: str) -> list[tuple[object, ...]]:
    return [(row["handler"], row["message_id"], row["type"]) for row in rows(database_url, tables.inbox)]


def test_what_ends_the_process_names_the_handler_and_the_message(engine: Engine):
    @inbox_handler("Exits")
    def exits(session: Session, event: OrderConfirmed) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as ended, Session(engine) as session, session.begin():
        inbox.run_once(session, ORDER, exits)
    assert ended.value.__notes__ == [f"in handler 'Exits', with message {ORDER.id!r} of type {ORDER.type!r}"]


def test_the_handlers_own_messages_are_in_the_same_transaction(engine: Engine, database_url: str):
    @inbox_handler("Sends")
    def sends(session: Session, event: OrderConfirmed) -> None:
        outbox.add(session, event, key="next")

    with Session(engine) as session:
        session.begin()
        inbox.run_once(session, ORDER, sends)
        assert not session.new, "what the handler added is flushed, so that its errors are its own"
        session.rollback()
    assert count(database_url, tables.outbox) == 0
    with Session(engine) as session, session.begin():
        inbox.run_once(session, ORDER, sends)
    (row,) = rows(database_url, tables.outbox)
    assert (row["correlation_id"], row["causation_id"], row["key"]) == ("story", "m-1", "next")


def test_the_message_is_known_while_its_handler_runs(engine: Engine):
    seen: list[object] = []

    @inbox_handler("Looks")
    def looks(session: Session, event: OrderConfirmed, message) -> None:
        seen.extend([message, current_handling()])

    with Session(engine) as session, session.begin():
        inbox.run_once(session, ORDER, looks)
    assert seen == [ORDER, Handling(ORDER, "Looks")]
    assert current_handling() is None


async def test_an_async_session_runs_handlers_of_both_kinds(async_engine: AsyncEngine, database_url: str):
    seen: list[object] = []

    @inbox_handler("Async3")
    async def looks(session: AsyncSession, event: OrderConfirmed, message) -> None:
        seen.extend([session, message])

    for expected in (Outcome.PROCESSED, Outcome.DUPLICATE):
        async with AsyncSession(async_engine) as session, session.begin():
            for handler in (work, async_work, looks):
                assert await session.run_sync(inbox.run_once, ORDER, handler) is expected
    assert inbox_rows(database_url) == [(name, "m-1", "OrderConfirmed") for name in ("Async", "Async3", "Sync")]
    assert count(database_url, effects) == 2
    assert isinstance(seen[0], AsyncSession)
    assert seen[1] == ORDER


def test_an_async_handler_needs_an_async_session(engine: Engine, database_url: str):
    refused = pytest.raises(ConfigurationError, match=r"needs an AsyncSession: await session.run_sync\(inbox.run_once")
    with refused, Session(engine) as session, session.begin():
        inbox.run_once(session, ORDER, async_work)
    assert count(database_url, tables.inbox) == 0


def hidden_coroutines() -> dict[str, Callable[..., Awaitable[None]]]:
    @functools.wraps(async_work)
    def wrapped(*given: Any) -> Any:
        return async_work(*given)

    async def slow(event: OrderConfirmed) -> None: ...

    @inbox_handler("Returns")
    def returns(session: Session, event: OrderConfirmed) -> Any:
        return slow(event)

    return {"wrapped": wrapped, "returns": returns}


@pytest.mark.parametrize("name", hidden_coroutines())
async def test_a_coroutine_is_never_dropped_and_counted_as_work(
    name: str, async_engine: AsyncEngine, database_url: str
):
    with pytest.raises(ConfigurationError, match="async def"):
        async with AsyncSession(async_engine) as session, session.begin():
            await session.run_sync(inbox.run_once, ORDER, hidden_coroutines()[name])
    assert count(database_url, tables.inbox) == count(database_url, effects) == 0


def generators() -> list[Callable[..., Any]]:
    def numbers() -> Iterator[int]:
        yield 1

    async def more_numbers() -> AsyncIterator[int]:
        yield 1

    @inbox_handler("Sync")
    def returns(session: Session, event: OrderConfirmed) -> Any:
        return numbers()

    @inbox_handler("Sync of async")
    def returns_more(session: Session, event: OrderConfirmed) -> Any:
        return more_numbers()

    @inbox_handler("Async")
    async def later(session: AsyncSession, event: OrderConfirmed) -> Any:
        return numbers()

    @inbox_handler("Async of async")
    async def later_more(session: AsyncSession, event: OrderConfirmed) -> Any:
        return more_numbers()

    return [returns, returns_more, later, later_more]


@pytest.mark.parametrize("handler", generators(), ids=lambda found: found.__name__)
async def test_a_generator_is_never_dropped_and_counted_as_work(
    handler: Callable[..., Any], async_engine: AsyncEngine, database_url: str
):
    name = handler_of(handler).name
    with pytest.raises(ConfigurationError, match=f"^handler '{name}' returned a generator, none of whose code has run"):
        async with AsyncSession(async_engine) as session, session.begin():
            await session.run_sync(inbox.run_once, ORDER, handler)
    assert count(database_url, tables.inbox) == 0


def test_outside_a_transaction_it_refuses(engine: Engine, database_url: str):
    with Session(engine) as session, pytest.raises(TransactionRequired, match=r"with session\.begin\(\):"):
        inbox.run_once(session, ORDER, work)
    assert count(database_url, tables.inbox) == 0


async def test_an_async_session_needs_run_sync(async_engine: AsyncEngine, database_url: str):
    async with AsyncSession(async_engine) as session, session.begin():
        with pytest.raises(TypeError, match=r"await session\.run_sync\(inbox\.run_once, message, handler\)"):
            inbox.run_once(session, ORDER, work)
    assert count(database_url, tables.inbox) == 0


async def test_a_coroutine_that_is_returned_is_refused(async_engine: AsyncEngine):
    @inbox_handler("Returns")
    async def returns(session: AsyncSession, event: OrderConfirmed) -> Any:
        return async_work(session, event)

    async with AsyncSession(async_engine) as session, session.begin():
        with pytest.raises(ConfigurationError, match="handler 'Returns' returned an awaitable, which is never awaited"):
            await session.run_sync(inbox.run_once, ORDER, returns)


@pytest.mark.parametrize("is_awaitable", [False, True])
async def test_a_plain_handler_may_return_anything_that_is_not_to_be_awaited(
    async_engine: AsyncEngine, is_awaitable: bool
):
    @inbox_handler("Returns")
    def returns(session: Session, event: OrderConfirmed) -> Any:
        return asyncio.get_running_loop().create_future() if is_awaitable else 5

    refusal = pytest.raises(ConfigurationError, match="'Returns' returned an awaitable, which is never awaited")
    async with AsyncSession(async_engine) as session, session.begin():
        with refusal if is_awaitable else nullcontext():
            assert await session.run_sync(inbox.run_once, ORDER, returns) is Outcome.PROCESSED


@pytest.mark.parametrize(("payload", "crc"), [(b"", 0), (b"{}", -1_549_353_149), (b"abc", 891_568_578)])
def test_the_checksum_of_a_payload_is_that_of_every_release(payload: bytes, crc: int):
    assert payload_crc(payload) == crc


@inbox_handler("Other")
def other_work(session: Session, event: OrderConfirmed) -> None: ...


def test_a_duplicate_with_another_payload_is_warned_of_once_for_each_handler(
    engine: Engine, caplog: pytest.LogCaptureFixture
):
    _warned.clear()
    changed = message(payload=b'{"order_id":8,"total":"9.50"}')
    for handler in (work, other_work):
        for arrival, warnings in ((ORDER, 0), (ORDER, 0), (changed, 1), (changed, 0)):
            caplog.clear()
            with Session(engine) as session, session.begin():
                inbox.run_once(session, arrival, handler)
            assert [record.name for record in caplog.records] == ["outboxkit"] * warnings
            name = handler_of(handler).name
            assert all(
                f"the id 'm-1': a duplicate of type OrderConfirmed has another payload than the message that handler "
                f"{name} had" in text
                for text in caplog.messages
            )
    _warned.clear()


@pytest.mark.parametrize(("given", "attempt"), [({}, 1), ({"attempt": 3}, 3)])
def test_the_attempt_is_in_the_row_and_in_the_span(
    engine: Engine, database_url: str, spans: Any, given: dict[str, int], attempt: int
):
    with Session(engine) as session, session.begin():
        inbox.run_once(session, ORDER, work, **given)
    (row,), (span,) = rows(database_url, tables.inbox), spans.all()
    assert row["attempts"] == attempt
    names = ("messaging.message.id", "outboxkit.handler", "outboxkit.attempt", "outboxkit.outcome")
    assert [span.attributes.get(name) for name in names] == ["m-1", "Sync", attempt, "processed"]


def test_what_was_handled_is_recalled_by_handler_and_id(engine: Engine):
    with Session(engine) as session, session.begin():
        for handler, arrival in ((work, ORDER), (other_work, ORDER), (work, message(id="m-2"))):
            inbox.run_once(session, arrival, handler)
        crc = payload_crc(ORDER.payload)
        assert recall(session, ["Sync", "Unknown"], [ORDER, message(id="m-3")]) == {("Sync", "m-1", crc)}


async def test_a_large_event_is_decoded_in_a_thread_if_an_event_loop_is_to_go_on(
    engine: Engine, async_engine: AsyncEngine
):
    places: list[bool] = []

    @event("Noted")
    @dataclass
    class Noted:
        text: str

        def __post_init__(self) -> None:
            places.append(threading.current_thread() is threading.main_thread())

    @inbox_handler("Notes")
    def notes(session: Session, event: Noted) -> None:
        assert event.text

    def noted(id_: str, size: int, *, packed: bool = False) -> Message:
        payload = b'{"text":"%s"}' % (b"x" * size)
        encoded = {"payload": gzip.compress(payload), "content_encoding": "gzip"} if packed else {"payload": payload}
        return message(id=id_, type="Noted", **encoded)

    async with AsyncSession(async_engine) as session, session.begin():
        await session.run_sync(inbox.run_once, noted("m-1", LARGE - len('{"text":""}')), notes)
        await session.run_sync(inbox.run_once, noted("m-2", LARGE), notes)
        await session.run_sync(inbox.run_once, noted("m-3", LARGE, packed=True), notes)
    assert places == [True, False, False]
    places.clear()
    for size in (1, LARGE):
        assert await event_for(handler_of(notes), noted("m", size)) == Noted("x" * size)
    assert places == [True, True, False, True]
    places.clear()
    with Session(engine) as session, session.begin():
        inbox.run_once(session, noted("m-4", LARGE), notes)
    assert places == [True]


async def test_an_encoding_that_is_not_known_is_named(async_engine: AsyncEngine):
    async with AsyncSession(async_engine) as session, session.begin():
        with pytest.raises(DecodeError, match="the payload is br-encoded"):
            await session.run_sync(inbox.run_once, message(content_encoding="br"), work)
        for encoding in ("UTF-8", "identity", ""):
            found = message(id=f"m-{encoding}", content_encoding=encoding)
            assert await session.run_sync(inbox.run_once, found, work) == "processed"
