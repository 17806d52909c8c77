"""Whatever is raised around a delivery, at any step: it is settled with its reason, others flow, the consumer lives."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Outcome, Reject, Retry, event, inbox_handler, tables
from outboxkit.consumer import Concurrency, dispatcher, handle
from outboxkit.consumer.attempts import Records
from outboxkit.consumer.handle import HandlerRunner
from tests.unit.consumer.conftest import Bench, in_both_places, order
from tests.unit.shop import OrderConfirmed, effects, message

SINGLE, ORDERED = Concurrency(2), Concurrency(2, ordered=True)


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class HalfMade(Retry):
    """A signal whose class has never called its base, and whose delay is none."""

    after: Any = "soon"

    def __init__(self) -> None:
        pass


async def inner_is_cancelled() -> None:
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def raising(error: Any) -> Any:
    async def fail() -> None:
        raise error() if isinstance(error, type) else error

    return fail


async def recursion() -> None:
    await recursion()


async def bad_delay() -> None:
    raise Retry("later", after="5m")  # type: ignore[arg-type]


LEAVING: dict[str, Any] = {
    "cancelled by an inner future": inner_is_cancelled,
    "cancels itself": cancels_itself,
    "CancelledError": raising(asyncio.CancelledError),
    "no text": raising(Exception),
    "mute": raising(Mute),
    "recursion": recursion,
    "MemoryError": raising(MemoryError),
    "an error as of our broker": raising(BrokerUnavailable("away")),
    "StopIteration": raising(StopIteration),
    "Retry of a text": bad_delay,
    "half made Retry": raising(HalfMade),
    "NUL and surrogate": raising(ValueError("a\0b\ud800" * 100_000)),
}


@pytest.mark.parametrize("mode", ["single", "batch", "ordered"])
@pytest.mark.parametrize(
    ("bench", "kind"), [("loop", "async def"), ("loop", "def"), ("thread", "def")], indirect=["bench"]
)
async def test_however_a_handler_is_left_it_is_its_failure_and_others_flow(bench: Bench, mode: str, kind: str):
    ran: list[int] = []
    names = list(LEAVING)

    @inbox_handler("Leaves", batch=mode == "batch")
    async def leaves(session: AsyncSession, event: OrderConfirmed) -> None:
        ran.append(event.order_id)
        await session.execute(insert(effects).values(what=f"order {event.order_id}"))
        if event.order_id < len(names):
            await LEAVING[names[event.order_id]]()

    @inbox_handler("Leaves", batch=mode == "batch")
    def leaves_in_sync(session: Session, event: OrderConfirmed) -> None:
        ran.append(event.order_id)
        session.execute(insert(effects).values(what=f"order {event.order_id}"))
        if event.order_id < len(names):
            LEAVING[names[event.order_id]]().send(None)
            raise ValueError("it was cancelled in the loop, or cannot be in a thread")

    bench.put(*(order(number, key=f"k-{number % 3}") for number in range(len(names) + 5)))
    with capture_logs() as said:
        consumer = await bench.run_until_settled(
            leaves if kind == "async def" else leaves_in_sync,
            concurrency=ORDERED if mode == "ordered" else SINGLE,
            max_attempts=2,
        )
    assert consumer.outcomes == {Outcome.PROCESSED: 5, Outcome.RETRIED: len(names), Outcome.DEAD: len(names)}
    assert len(bench.rows(effects)) == len(bench.rows(tables.inbox)) == 5
    letters = {row["message_id"]: row for row in bench.letters()}
    assert letters.keys() == {f"m-{number}" for number in range(len(names))}
    assert {(row["reason"], row["handler"], row["attempts"]) for row in letters.values()} == {("failed", "Leaves", 2)}
    assert all(0 < len(row["error"]) <= 1000 for row in letters.values())
    for number in range(len(names)):
        told = [line["log_level"] for line in said if line.get("message_id") == f"m-{number}" and "reason" in line]
        assert told == ["warning", "error"], names[number]
    assert bench.rows(tables.attempt) == []


@pytest.mark.parametrize("mode", ["single", "batch", "ordered"])
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_handler_that_has_ended_cannot_be_cancelled(bench: Bench, mode: str, kind: str):
    def cancel(task: "asyncio.Task[Any]", times: int) -> None:
        task.cancel()
        if times:
            asyncio.get_running_loop().call_soon(cancel, task, times - 1)

    def works(session: Session, event: OrderConfirmed) -> None:
        session.execute(insert(effects).values(what=f"order {event.order_id}"))
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(cancel, task, 1000)

    @inbox_handler("Cancels", batch=mode == "batch")
    async def cancels(session: AsyncSession, event: OrderConfirmed) -> None:
        await session.run_sync(works, event)

    @inbox_handler("Cancels", batch=mode == "batch", in_loop=True)
    def cancels_in_sync(session: Session, event: OrderConfirmed) -> None:
        works(session, event)

    bench.put(*(order(number, key=f"k-{number % 3}") for number in range(8)))
    consumer = await bench.run_until_settled(
        cancels if kind == "async def" else cancels_in_sync,
        concurrency=ORDERED if mode == "ordered" else SINGLE,
        max_attempts=1,
    )
    assert consumer.outcomes == {Outcome.PROCESSED: 8}
    assert len(bench.rows(effects)) == len(bench.rows(tables.inbox)) == 8


@event("Checked")
@dataclass
class Checked:
    number: int

    def __post_init__(self) -> None:
        raise (KeyError("Mars/Olympus"), AssertionError(), Mute(), RecursionError())[self.number]


@in_both_places
@pytest.mark.parametrize("batch", [False, True])
async def test_whatever_a_validator_raises_is_the_end_of_its_message_alone(bench: Bench, batch: bool):
    @inbox_handler("Check", batch=batch)
    def check(session: Session, event: Checked) -> None: ...

    @inbox_handler("Work", batch=batch)
    def work(session: Session, event: OrderConfirmed) -> None: ...

    for number in range(4):
        bench.put(
            message(id=f"c-{number}", type="Checked", payload=b'{"number":%d}' % number), message(id=f"w-{number}")
        )
    consumer = await bench.run_until_settled(check, work, max_attempts=1)
    assert consumer.outcomes == {Outcome.PROCESSED: 4, Outcome.DEAD: 4}
    told = {row["message_id"]: (row["reason"], row["error"]) for row in bench.letters()}
    assert told["c-0"] == ("undecodable", "DecodeError: the payload is not a valid Checked: KeyError: 'Mars/Olympus'")


class Panic(BaseException):
    """What is not an Exception, as a panic of a library in Rust."""


@in_both_places
@pytest.mark.parametrize("batch", [False, True])
async def test_what_is_not_an_exception_ends_the_consumer_and_its_message_comes_again(bench: Bench, batch: bool):
    @inbox_handler("Panics", batch=batch)
    def panics(session: Session, event: OrderConfirmed) -> None:
        session.execute(insert(effects).values(what=f"order {event.order_id}"))
        if event.order_id == 1:
            raise Panic

    bench.put(order(0), order(1))
    async with asyncio.timeout(30):
        with pytest.raises(Panic):
            await bench.consumer(panics).run(bench.stop)
    assert "m-1" not in {row["message_id"] for row in bench.rows(tables.inbox)}
    assert bench.letters() == []


@pytest.mark.parametrize(("concurrency", "redelivered"), [(SINGLE, False), (ORDERED, False), (SINGLE, True)])
async def test_an_error_of_our_own_sets_one_message_aside(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, concurrency: Concurrency, redelivered: bool
):
    @inbox_handler("Work")
    def work(session: Session, event: OrderConfirmed) -> None: ...

    conclude = HandlerRunner._conclude

    async def unlucky(self: Any, arrival: Any, *more: Any) -> None:
        if arrival.delivery.message.id in ("m-1", "m-2"):
            raise {"m-1": KeyError("a bug"), "m-2": asyncio.CancelledError()}[arrival.delivery.message.id]
        await conclude(self, arrival, *more)

    monkeypatch.setattr(HandlerRunner, "_conclude", unlucky)
    for number in range(4):
        bench.put_redelivered(order(number, key="k"), times=int(redelivered))
    with capture_logs() as said:
        consumer = await bench.run_until_settled(work, concurrency=concurrency)
    assert consumer.outcomes == {Outcome.PROCESSED: 4, Outcome.DEAD: 2}
    letters = bench.letters()
    assert sorted((row["message_id"], row["handler"], row["error"]) for row in letters) == [
        ("m-1", None, "KeyError: 'a bug'"),
        ("m-2", None, "CancelledError"),
    ]
    assert [line["log_level"] for line in said if "reason" in line] == ["error", "error"]
    assert all("unlucky" in line["exception"] for line in said if "reason" in line)
    assert bench.rows(tables.attempt) == [], "its start has ended"


@pytest.mark.unexpected
@pytest.mark.parametrize("concurrency", [SINGLE, ORDERED, Concurrency(2, ordered=True, batch=5)])
async def test_what_cannot_even_be_set_aside_comes_again_after_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, concurrency: Concurrency
):
    """And none of its key overtakes it, if they are ordered."""
    for module in (dispatcher, handle):
        monkeypatch.setattr(module, "STUCK_SECONDS", 0.02)
    refused, handled_before = list[float](), list[Any]()
    bury = Records.bury

    async def failing(self: Any, *given: Any, **more: Any) -> bool:
        if len(refused) < 6:
            refused.append(asyncio.get_running_loop().time())
            raise ZeroDivisionError
        handled_before.extend(bench.rows(tables.inbox))
        return await bury(self, *given, **more)

    @inbox_handler("Rejects", batch=True)
    def rejects(session: Session, event: OrderConfirmed) -> None:
        if event.order_id == 7:
            raise Reject(KeyError("x"))

    monkeypatch.setattr(Records, "bury", failing)
    bench.put(order(7, key="k"), order(8, key="k"))
    consumer = await bench.run_until_settled(rejects, concurrency=concurrency)
    assert consumer.outcomes == {Outcome.PROCESSED: 1, Outcome.DEAD: 1}
    assert refused[-1] - refused[0] >= 0.04, "it is no hot loop"
    assert len(handled_before) == (0 if concurrency.ordered else 1)
    (row,) = bench.letters()
    assert (row["reason"], row["error"]) == ("rejected", "Reject: KeyError: 'x'")


@pytest.mark.parametrize("after", [-5, timedelta(days=-1), 10**30, float("inf"), timedelta.max, 0.5])
async def test_any_delay_that_is_a_number_is_one(bench: Bench, after: Any):
    @inbox_handler("Waits")
    def waits(session: Session, event: OrderConfirmed, message: Any) -> None:
        if message.id == "m-1" and not bench.stop.is_set():
            bench.stop.set()
            raise Retry(after=after)

    bench.put(message())
    assert (await bench.drain(waits)).outcomes == {Outcome.RETRIED: 1}
