"""The spans of a consumer: of each attempt, of a batch, and what handlers in threads and in the event loop see."""

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import inbox_handler, outbox
from outboxkit.codec.envelopes.envelope import Malformed
from tests.support.spans import REMOTE, Spans, header_of, links_of, parent_of
from tests.unit.consumer.conftest import Bench, in_both_places
from tests.unit.shop import OrderConfirmed, StockChanged, message

STOCK = StockChanged("red-7", 1)


@in_both_places
async def test_a_handler_wherever_it_runs_sees_the_span_of_its_message(bench: Bench, spans: Spans):
    @inbox_handler("Plain")
    def plain(session: Session, event: OrderConfirmed) -> None:
        with spans.tracer.start_as_current_span("plain"):
            outbox.add(session, STOCK)

    @inbox_handler("Async")
    async def awaits(session: AsyncSession, event: OrderConfirmed) -> None:
        with spans.tracer.start_as_current_span("async"):
            outbox.add(session, STOCK)

    bench.put(message(headers={"traceparent": REMOTE}))
    await bench.drain(plain, awaits)
    by_handler = {(span.attributes or {})["outboxkit.handler"]: span for span in spans.named("process billing")}
    assert {name: parent_of(span) for name, span in by_handler.items()} == {"Plain": REMOTE, "Async": REMOTE}
    for name, inner in (("Plain", "plain"), ("Async", "async")):
        assert parent_of(spans.one(inner)) == header_of(by_handler[name])
    found = dict(by_handler["Plain"].attributes or {})
    assert found["messaging.system"] == "memory"
    assert found["messaging.destination.name"] == "billing"
    assert found["outboxkit.outcome"] == "processed"
    assert {parent_of(each) for each in spans.named("create StockChanged")} == {
        header_of(spans.one("plain")),
        header_of(spans.one("async")),
    }


@in_both_places
async def test_each_further_attempt_is_a_trace_with_a_link(bench: Bench, spans: Spans):
    @inbox_handler("Fails")
    def fails(session: Session, event: OrderConfirmed) -> None:
        raise ValueError("boom")

    bench.put(message(headers={"traceparent": REMOTE}))
    await bench.run_until_settled(fails)
    first, second, third = spans.named("process billing")
    assert (parent_of(first), links_of(first)) == (REMOTE, [])
    assert [(parent_of(each), links_of(each)) for each in (second, third)] == [(None, [REMOTE])] * 2
    told = [
        ((each.attributes or {})["outboxkit.attempt"], (each.attributes or {})["outboxkit.outcome"])
        for each in (first, second, third)
    ]
    assert told == [(1, "retried"), (2, "retried"), (3, "dead")]
    assert {each.status.description for each in (first, second, third)} == {"ValueError: boom"}
    assert [len(each.events) for each in (first, second, third)] == [1, 1, 1]


@in_both_places
async def test_a_batch_is_one_span_and_the_message_that_fails_has_its_own(bench: Bench, spans: Spans):
    @inbox_handler("Batch", batch=True)
    def batch(session: Session, event: OrderConfirmed) -> None:
        outbox.add(session, STOCK)
        if event.order_id == 13:
            raise ValueError("unlucky")

    contexts = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 5)]
    numbers = (7, 13, 8, 9)
    bench.put(
        *(
            message(id=str(number), payload=b'{"order_id":%d,"total":"1"}' % number, headers={"traceparent": each})
            for number, each in zip(numbers, contexts, strict=True)
        )
    )
    await bench.drain(batch, max_attempts=1)
    assert spans.named("process") == []  # of `run_batch` itself
    whole, *_ = spans.named("process billing")
    assert (whole.attributes or {})["messaging.batch.message_count"] == 4
    assert (links_of(whole), (whole.attributes or {})["error.type"]) == (contexts, "ValueError")
    alone = [span for span in spans.named("process billing") if (span.attributes or {}).get("messaging.message.id")]
    dead = next(span for span in alone if (span.attributes or {})["messaging.message.id"] == "13")
    assert (parent_of(dead), (dead.attributes or {})["outboxkit.outcome"]) == (contexts[1], "dead")
    good = [
        span for span in spans.named("process billing") if (span.attributes or {}).get("outboxkit.messages.processed")
    ]
    assert [links_of(span) for span in good] == [contexts[2:]]


async def test_what_no_handler_gets_has_no_span(bench: Bench, spans: Spans):
    @inbox_handler("Works")
    async def works(session: AsyncSession, event: OrderConfirmed) -> None:
        raise AssertionError

    bench.put(Malformed(b"", reason="it has no id"), message(created_at=message().created_at.replace(year=2020)))
    await bench.drain(works)
    assert spans.all() == []
