"""The spans of a relay: of each batch that it publishes, and of the handlers that it runs itself."""

import pytest
from opentelemetry.trace import StatusCode
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import BrokerUnavailable, inbox_handler, outbox
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.inbox import handler_of
from tests.support.spans import Spans, header_of, links_of, parent_of
from tests.unit.relay.conftest import Bench
from tests.unit.shop import NOW, OrderConfirmed, message


async def test_a_broker_that_is_away_fails_it(bench: Bench, spans: Spans):
    def away(_: object) -> None:
        raise BrokerUnavailable("the broker is away")

    bench.publisher.answer = away
    bench.add("1")
    async with bench.pipeline() as pipeline:
        with pytest.raises(BrokerUnavailable):
            await pipeline.turn(bench.clock.now, bench.stop)
    send = spans.one("publish default")
    assert send.status.status_code is StatusCode.ERROR
    assert (send.attributes or {})["error.type"] == "BrokerUnavailable"


async def test_handlers_in_the_relays_process_continue_the_trace(bench: Bench, spans: Spans):
    attempts: list[str] = []

    @inbox_handler("Plain")
    def plain(session: Session, event: OrderConfirmed) -> None:
        with spans.tracer.start_as_current_span("plain"):
            pass

    @inbox_handler("FailsOnce")
    async def fails_once(session: AsyncSession, event: OrderConfirmed) -> None:
        attempts.append("tried")
        if len(attempts) == 1:
            raise ValueError("boom")

    handlers = [handler_of(plain), handler_of(fails_once)]
    bench.publisher = DirectPublisher(bench.async_engine, handlers, clock=lambda: NOW)
    with spans.tracer.start_as_current_span("request"), Session(bench.engine) as session, session.begin():
        outbox.add(session, message(id="1"))
    create = header_of(spans.one("create OrderConfirmed"))
    await bench.drain()
    bench.clock.now = bench.rows()[0]["due_at"]
    await bench.drain()
    (first_send, second_send), runs = spans.named("publish default"), spans.named("process")
    told = [
        (
            found["outboxkit.handler"],
            found["outboxkit.attempt"],
            found.get("outboxkit.outcome"),
            found.get("error.type"),
        )
        for found in (dict(run.attributes or {}) for run in runs)
    ]
    assert told == [
        ("Plain", 1, "processed", None),
        ("FailsOnce", 1, None, "ValueError"),
        ("Plain", 2, "duplicate", None),
        ("FailsOnce", 2, "processed", None),
    ]
    assert [parent_of(run) for run in runs] == [create, create, None, None]
    assert links_of(runs[0]) == [header_of(first_send)]
    assert links_of(runs[2]) == [create, header_of(second_send)]
    assert parent_of(spans.one("plain")) == header_of(runs[0])
