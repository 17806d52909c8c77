"""An application's own publisher, and whatever it answers or raises: it stops no other message."""

from datetime import timedelta
from typing import Any

import pytest

from outboxkit import BrokerUnavailable
from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.memory import MemoryPublisher
from outboxkit.message import Message
from outboxkit.relay.pipeline import LONGEST_AFTER
from tests.unit.relay.conftest import Bench
from tests.unit.shop import NOW


def answering(bench: Bench, answer: Any) -> None:
    """Have the publisher answer this to the message `odd`, and publish all others."""
    publish = MemoryPublisher(bench.publisher.broker).publish

    async def answer_oddly(batch: list[Message]) -> list[Any]:
        return [answer if message.id == "odd" else (await publish([message]))[0] for message in batch]

    bench.publisher.publish = answer_oddly


@pytest.mark.parametrize("answer", [None, "confirmed", Receipt("sent"), Receipt(None)])  # type: ignore[arg-type]
async def test_an_answer_that_is_no_receipt_fails_its_message_alone(bench: Bench, answer: Any):
    bench.add("a", "odd", "b")
    answering(bench, answer)
    await bench.drain()
    assert bench.arrived() == ["a", "b"]
    (row,) = bench.rows()
    assert (row["message_id"], row["attempts"]) == ("odd", 1)
    assert "a Receipt is accepted" in row["last_error"]


@pytest.mark.parametrize(
    ("after", "shortest", "longest"),
    [
        (timedelta.max, LONGEST_AFTER, LONGEST_AFTER),
        (timedelta(days=2), timedelta(days=2), timedelta(days=2)),
        (timedelta.min, timedelta(0), timedelta(minutes=1)),
        ("soon", timedelta(0), timedelta(minutes=1)),
    ],
)
async def test_the_wait_that_it_asks_for_is_bounded(bench: Bench, after: Any, shortest: timedelta, longest: timedelta):
    bench.add("odd", "b")
    answering(bench, Receipt(Verdict.POSTPONED, "later", after=after))
    await bench.drain()
    assert bench.arrived() == ["b"]
    (row,) = bench.rows()
    assert shortest <= row["due_at"] - NOW <= longest


@pytest.mark.parametrize("error", [ExceptionGroup("one", [OSError()]), BaseExceptionGroup("two", [GeneratorExit()])])
async def test_whatever_it_raises_is_an_outage_and_no_attempt(bench: Bench, error: BaseException):
    def fail(message: Message) -> None:
        if message.id == "odd":
            raise error

    bench.add("a", "odd", "b")
    before = bench.rows()
    bench.publisher.answer = fail
    async with bench.pipeline() as pipeline:
        with pytest.raises(BrokerUnavailable, match="the publisher failed: "):
            await pipeline.turn(bench.clock.now, bench.stop)
    assert bench.rows() == before
    assert bench.publisher.closed == 1
