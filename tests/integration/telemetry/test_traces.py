"""One trace from a request in FastAPI to the last handler of another service: real servers, OpenTelemetry's own SDK."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.sdk.trace import ReadableSpan
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, inbox_handler, outbox
from outboxkit.brokers.http import HttpPublisher
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.consumer import ConsumerPolicy
from outboxkit.operators.deadletters import DeadLetters, Resolved, Selection
from outboxkit.operators.replay import Replayed, Replayer, ReplaySelection
from outboxkit.relay import Relay
from outboxkit.telemetry import tracing
from tests.integration.consumer.running_consumer import Billed, Ordered, Start, starter
from tests.support.http_destination import Destination
from tests.support.plain_client import PlainClient
from tests.support.spans import REMOTE, Spans, context_of, header_of, links_of, parent_of, recording


@pytest.fixture
def spans(pg_engine: Engine, async_pg_engine: AsyncEngine) -> Iterator[Spans]:
    """The spans of this process; the statements of both engines have some too."""
    with recording() as made:
        engines, instrumentor = [pg_engine, async_pg_engine.sync_engine], SQLAlchemyInstrumentor()
        instrumentor.instrument(engines=engines, tracer_provider=made.provider, skip_dep_check=True)
        try:
            yield made
        finally:
            instrumentor.uninstrument()


@pytest.fixture
def start(async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient) -> Start:
    return starter(async_pg_engine, broker, thread_engine=pg_engine)


@asynccontextmanager
async def relaying(engine: AsyncEngine, broker: PlainClient, *, keep: bool = False) -> AsyncIterator[None]:
    publisher, stop = RabbitPublisher(broker.url, exchange=broker.exchange), asyncio.Event()
    relay = asyncio.create_task(Relay(engine, publisher, keep_published=keep).run(stop))
    try:
        yield
    finally:
        stop.set()
        await relay


@asynccontextmanager
async def shop(engine: AsyncEngine, spans: Spans) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an instrumented application."""
    app = FastAPI()

    @app.post("/orders")
    async def order() -> None:
        async with AsyncSession(engine) as session, session.begin():
            outbox.add(session, Ordered(7), key="order-7")

    FastAPIInstrumentor.instrument_app(app, tracer_provider=spans.provider, exclude_spans=["receive", "send"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        yield client


def of_trace(spans: Spans, root: ReadableSpan) -> list[ReadableSpan]:
    return [span for span in spans.all() if context_of(span).trace_id == context_of(root).trace_id]


@inbox_handler("BillOrder")
async def bill(session: AsyncSession, event: Ordered) -> None:
    await session.execute(text("SELECT 'bill'"))
    outbox.add(session, Billed(event.number))


@inbox_handler("ShipOrder")
def ship(session: Session, event: Billed) -> None:
    session.execute(text("SELECT 'ship'"))


async def test_one_trace_from_a_request_to_the_last_handler(
    start: Start, spans: Spans, async_pg_engine: AsyncEngine, broker: PlainClient
):
    async with start(bill, ship) as consumer, relaying(async_pg_engine, broker), shop(async_pg_engine, spans) as client:
        assert (await client.post("/orders")).status_code == 200
        await consumer.reaches(processed=2)
    request = spans.one("POST /orders")
    tree = of_trace(spans, request)
    by_header = {header_of(span): span for span in tree}
    parents = {header_of(span): by_header.get(parent_of(span) or "") for span in tree}
    assert [span for span in tree if parents[header_of(span)] is None] == [request]

    def child(name: str, parent: ReadableSpan) -> ReadableSpan:
        (found,) = [span for span in tree if span.name == name and parents[header_of(span)] is parent]
        return found

    ordered = child("create Ordered", request)
    billing = child(f"process {broker.queue}", ordered)
    billed = child("create Billed", billing)
    shipping = child(f"process {broker.queue}", billed)
    assert [(each.attributes or {})["outboxkit.handler"] for each in (billing, shipping)] == ["BillOrder", "ShipOrder"]
    assert (billing.attributes or {})["messaging.system"] == "rabbitmq"
    statements = {
        (span.attributes or {})["db.statement"]: parents[header_of(span)]
        for span in tree
        if "db.statement" in (span.attributes or {})
    }
    assert (statements["SELECT 'bill'"], statements["SELECT 'ship'"]) == (billing, shipping)
    sends = spans.named(f"publish {broker.exchange}")
    assert sorted(link for send in sends for link in links_of(send)) == sorted(map(header_of, (ordered, billed)))


async def test_a_retry_and_a_replayed_dead_letter_are_linked(
    start: Start, spans: Spans, async_pg_engine: AsyncEngine, broker: PlainClient
):
    failing = True

    @inbox_handler("FailTwice")
    async def fail_twice(session: AsyncSession, event: Ordered) -> None:
        if failing:
            raise ValueError("boom")

    policy = ConsumerPolicy(max_attempts=2)
    async with (
        start(fail_twice, policy=policy) as consumer,
        relaying(async_pg_engine, broker),
        shop(async_pg_engine, spans) as client,
    ):
        await client.post("/orders")
        await consumer.reaches(retried=1, dead=1)
        failing = False
        await DeadLetters(async_pg_engine).resolve("replayed", Selection(), asyncio.Event(), Resolved())
        await consumer.reaches(retried=1, dead=1, processed=1)
    created = header_of(spans.one("create Ordered"))
    first, second, replayed = spans.named(f"process {broker.queue}")
    assert (parent_of(first), links_of(first)) == (created, [])
    assert [(parent_of(each), links_of(each)) for each in (second, replayed)] == [(None, [created])] * 2
    assert (second.attributes or {})["outboxkit.attempt"] == 2
    assert (replayed.attributes or {})["outboxkit.replayed"] is True
    assert [links_of(send) for send in spans.named(f"publish {broker.exchange}")] == [[created], [created]]


async def test_kept_messages_that_are_replayed_are_linked(
    start: Start, spans: Spans, pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    async with start(bill) as consumer, shop(async_pg_engine, spans) as client:
        async with relaying(async_pg_engine, broker, keep=True):
            await client.post("/orders")
            await consumer.reaches(processed=1)
        publisher, done = RabbitPublisher(broker.url, exchange="", queue=broker.queue), Replayed()
        await Replayer(async_pg_engine, publisher, ReplaySelection(type="Ordered")).run(asyncio.Event(), done)
        await publisher.close()
        await consumer.reaches(processed=1, duplicate=1)
    created = header_of(spans.one("create Ordered"))
    assert links_of(spans.one(f"publish {broker.queue}")) == [created]
    _, replayed = spans.named(f"process {broker.queue}")
    assert (parent_of(replayed), links_of(replayed)) == (None, [created])
    assert (replayed.attributes or {})["outboxkit.outcome"] == "duplicate"


class Noting(httpx.AsyncBaseTransport):
    """What an instrumentation of httpx would see, in front of the publisher's own transport."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner, self.seen = inner, list[int]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(trace.get_current_span().get_span_context().span_id)
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


async def test_the_requests_of_a_batch_are_each_in_the_trace_of_their_message(spans: Spans):
    with spans.tracer.start_as_current_span("request"):
        fields = [{"id": id_, "type": "Ordered", "payload": b"{}"} for id_ in "12"]
        batch = [Message(**each, headers=tracing.created(each, "hooks")) for each in fields]
    async with Destination() as destination:
        publisher = HttpPublisher(destination.url, concurrency=1)
        await publisher.connect()
        assert publisher._transport is not None
        publisher._transport = noting = Noting(publisher._transport)
        with tracing.sending(batch, tracing.HERE):
            await publisher.publish(batch)
        await publisher.close()
    assert noting.seen == [context_of(span).span_id for span in spans.named("create Ordered")]


@pytest.mark.parametrize("source", [None, "/shop"])
async def test_a_request_to_an_http_destination_carries_the_messages_context(spans: Spans, source: str | None):
    sent = Message(id="1", type="Ordered", payload=b"{}", headers={"traceparent": REMOTE})
    async with Destination() as destination:
        publisher = HttpPublisher(destination.url, cloudevents_source=source)
        await publisher.connect()
        await publisher.publish([sent])
        await publisher.close()
        (call,) = destination.calls
    assert call.header("traceparent") == REMOTE
