"""One delivery from its arrival to its ack."""

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Outcome, Reject, inbox_handler, tables
from outboxkit.codec.envelopes.envelope import Malformed
from outboxkit.codec.headers import DeliveryHeaders
from outboxkit.consumer import Concurrency
from tests.unit.consumer.conftest import AT_ONCE, Bench, in_both_places
from tests.unit.shop import OrderConfirmed, effects, message

pytestmark = in_both_places


@inbox_handler("Work")
def work(session: Session, event: OrderConfirmed) -> None:
    session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("AsyncWork")
async def async_work(session: AsyncSession, event: OrderConfirmed) -> None:
    await session.execute(insert(effects).values(what=f"order {event.order_id}"))


@inbox_handler("Fails")
def fails(session: Session, event: OrderConfirmed) -> None:
    work(session, event)
    raise ValueError("boom")


@inbox_handler("Rejects")
def rejects(session: Session, event: OrderConfirmed) -> None:
    work(session, event)
    raise Reject("no such order")


class Flaky:
    """A handler that fails so many times first."""

    def __init__(self, failures: int) -> None:
        self.calls = 0

        @inbox_handler("Flaky")
        def handler(session: Session, event: OrderConfirmed) -> None:
            work(session, event)
            self.calls += 1
            if self.calls <= failures:
                raise ValueError("boom")

        self.handler = handler


def dead(bench: Bench) -> list[tuple[object, ...]]:
    names = ("message_id", "handler", "reason", "error", "attempts")
    return [tuple(row[name] for name in names) for row in bench.letters()]


async def test_each_attempt_waits_for_its_delay(bench: Bench):
    bench.put(message())
    with capture_logs() as said:
        await bench.run_until_settled(fails, max_attempts=6)
    waits = [line["after"] for line in said if "after" in line]
    steps = [f"{step.total_seconds():g}s" for step in AT_ONCE]
    assert waits == [*steps, steps[-1], steps[-1]]


async def test_a_failing_handler_does_not_repeat_the_others(bench: Bench):
    flaky = Flaky(2)
    bench.put(message())
    consumer = await bench.run_until_settled(work, flaky.handler)
    assert consumer.outcomes == {Outcome.PROCESSED: 2, Outcome.RETRIED: 2, Outcome.DUPLICATE: 2}
    assert consumer.handled == 2, "once when the first handler has, and once after the retry"
    assert len(bench.rows(effects)) == 2


async def test_a_message_is_handled_once_however_many_handlers_it_has(bench: Bench):
    @inbox_handler("Other")
    async def other(session: AsyncSession, event: OrderConfirmed) -> None: ...

    bench.put(message())
    consumer = await bench.run_until_settled(work, other)
    assert (consumer.outcomes, consumer.handled) == ({Outcome.PROCESSED: 2}, 1)


async def test_a_dead_handler_beside_a_retried_one_is_buried_once(bench: Bench):
    bench.put(message())
    consumer = await bench.run_until_settled(rejects, fails)
    assert sorted(dead(bench)) == [
        ("m-1", "Fails", "failed", "ValueError: boom", 3),
        ("m-1", "Rejects", "rejected", "Reject: no such order", 1),
    ]
    assert consumer.outcomes == {Outcome.RETRIED: 2, Outcome.DEAD: 2}


async def test_what_is_no_message_is_set_aside_as_it_came(bench: Bench):
    bench.put(
        Malformed(b"\xff", {"a": b"\xff"}, "", "m-9", None, "x/y", correlation_id="c", reason="the message has no type")
    )
    assert (await bench.drain(work)).outcomes == {Outcome.DEAD: 1}
    assert dead(bench) == [("m-9", None, "malformed", "the message has no type", 1)]
    (row,) = bench.letters()
    assert (row["payload"], row["headers"], row["content_type"], row["correlation_id"]) == (
        b"\xff",
        b'{"a":"/w=="}',
        "x/y",
        "c",
    )


async def test_a_type_without_handler_waits_for_another_version_and_is_set_aside_in_the_end(bench: Bench):
    bench.put(message(type="Unknown"), message(id="m-2"))
    consumer = await bench.run_until_settled(work)
    assert consumer.outcomes == {Outcome.RETRIED: 2, Outcome.DEAD: 1, Outcome.PROCESSED: 1}
    assert dead(bench) == [
        ("m-1", None, "no handler", "no handler here takes 'Unknown'; this consumer has handlers for OrderConfirmed", 3)
    ]


async def test_names_of_another_version_wait_for_it_while_those_of_this_one_run(bench: Bench):
    names = ("Work", *(f"Newer{number}" for number in range(200)))
    bench.subscriber.queue.put(message(), DeliveryHeaders(handlers=names))
    consumer = await bench.run_until_settled(work, async_work)
    assert consumer.outcomes == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: 2, Outcome.RETRIED: 2, Outcome.DEAD: 1}
    assert [row["handler"] for row in bench.rows(tables.inbox)] == ["Work"]
    ((id_, handler, reason, error, attempts),) = dead(bench)
    assert (id_, handler, reason, attempts) == ("m-1", None, "no handler", 3)
    assert str(error).startswith("it is for Newer0, Newer1, Newer2, …, and no handler")


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_name_of_another_version_outlives_a_dead_handler_beside_a_retried_one(bench: Bench, ordered: bool):
    calls: list[int] = []

    @inbox_handler("Rejects")
    def rejects_once(session: Session, event: OrderConfirmed) -> None:
        calls.append(event.order_id)
        raise Reject("no such order")

    headers = DeliveryHeaders(handlers=("Rejects", "Flaky", "Newer"))
    bench.subscriber.queue.put(message(key="k"), headers)
    await bench.run_until_settled(rejects_once, Flaky(2).handler, concurrency=Concurrency(2, ordered=ordered))
    assert calls == [7], "it has given up, and does not run again"
    assert sorted((handler or "", reason) for _, handler, reason, *_ in dead(bench)) == [
        ("", "no handler"),
        ("Rejects", "rejected"),
    ]
    assert len(bench.rows(effects)) == 1


async def test_an_id_with_an_impossible_time_is_handled(bench: Bench):
    bench.put(message(id="ffffffff-ffff-7fff-bfff-ffffffffffff"))
    assert (await bench.drain(work)).outcomes == {Outcome.PROCESSED: 1}
