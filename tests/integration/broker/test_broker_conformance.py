"""Every broker and every destination that comes with outboxkit passes the suite that comes with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from urllib.parse import unquote

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import Reject, event, ids, inbox_handler, upcast
from outboxkit.brokers import Publisher, Receipt, Subscriber
from outboxkit.brokers.http import HttpPublisher
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.brokers.rabbitmq import RabbitPublisher, RabbitSubscriber
from outboxkit.codec.payloads import encode
from outboxkit.consumer.direct import DirectPublisher
from outboxkit.inbox import handler_of
from outboxkit.message import Message
from outboxkit.testing import conformance
from tests.servers import Server
from tests.support.http_destination import Call, Destination, Say, say


class Memory:
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def publisher(self) -> Publisher:
        return MemoryPublisher(self.broker)

    def subscriber(self, queue: str, topics: Sequence[str], delays: Sequence[timedelta]) -> Subscriber:
        return MemorySubscriber(self.broker, queue, topics, delays)


class Rabbit:
    def __init__(self, url: str) -> None:
        self.url = url
        self.exchange = f"conformance-{ids.new()}"

    def publisher(self) -> Publisher:
        return RabbitPublisher(self.url, exchange=self.exchange)

    def subscriber(self, queue: str, topics: Sequence[str], delays: Sequence[timedelta]) -> Subscriber:
        return RabbitSubscriber(self.url, queue, exchange=self.exchange, topics=topics, delays=delays)


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_memory_broker_conforms(case: conformance.Case) -> None:
    await case(Memory())


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_rabbitmq_conforms(case: conformance.Case, rabbitmq: Server) -> None:
    await case(Rabbit(rabbitmq.url))


class Http:
    def __init__(self, server: Destination) -> None:
        self.server = server
        self.refused: set[str] = set()
        self.taken: list[Message] = []
        server.answer = self.answer

    def publisher(self) -> Publisher:
        return HttpPublisher(self.server.url, timeout=timedelta(minutes=1))  # for many large ones on a slow machine

    def refuse(self, id: str) -> None:  # noqa: A002
        self.refused.add(id)

    def arrived(self) -> Sequence[Message]:
        return self.taken

    def answer(self, call: Call) -> Say:
        message = message_of(call)
        if message.id in self.refused:
            return say(400, b"refused")
        self.taken.append(message)
        return say()


def message_of(call: Call) -> Message:
    """What a receiver can read of a request."""

    def text(name: str) -> str | None:
        value = call.header(f"outboxkit-{name}")
        return None if value is None else unquote(value)

    transport = {"host", "content-length", "content-type", "user-agent", "idempotency-key"}
    own = {name: value for name, value in call.headers if not name.lower().startswith(("outboxkit-", "accept"))}
    created_at = text("created-at")
    return Message(
        id=unquote(str(call.key)),
        type=str(text("type")),
        payload=call.body,
        key=text("key"),
        topic=text("topic"),
        headers={name: value for name, value in own.items() if name.lower() not in transport},
        correlation_id=text("correlation-id"),
        causation_id=text("causation-id"),
        created_at=None if created_at is None else datetime.fromisoformat(created_at),
        content_type=str(call.header("content-type")),
        version=int(text("version") or 1),
    )


@pytest.mark.parametrize("case", conformance.POINT_TO_POINT, ids=lambda case: case.__name__)
async def test_an_http_destination_conforms(case: conformance.Case) -> None:
    async with Destination() as server:
        await case(Http(server))


@event("Anything", version=2)
@dataclass(frozen=True)
class Anything:
    type: str
    payload: bytes


@upcast("Anything", 1)
def as_it_is(document: dict[str, Any]) -> dict[str, Any]:
    return document


class AsAnything(DirectPublisher):
    """Its handlers take events of a type that they know: whatever the suite sends is wrapped into one."""

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        return await super().publish([wrapped(message) for message in batch])


def wrapped(message: Message) -> Message:
    return replace(message, type="Anything", payload=encode(Anything(message.type, message.payload), limit=1 << 24))


class Direct:
    def __init__(self, engine: Engine, async_engine: AsyncEngine) -> None:
        self.engine, self.async_engine = engine, async_engine
        self.refused: set[str] = set()
        self.messages: dict[str, Message] = {}
        self.numbers = count()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE taken (number INTEGER PRIMARY KEY, message_id TEXT NOT NULL)"))

    def publisher(self) -> Publisher:
        handlers, patience = [handler_of(self.take())], timedelta(minutes=2)
        return AsAnything(self.async_engine, handlers, retention=timedelta(days=36500), timeout=patience)

    def take(self):
        @inbox_handler("Take")
        def take(session: Session, event: Anything, message: Message) -> None:
            row = {"number": next(self.numbers), "id": message.id}
            session.execute(text("INSERT INTO taken VALUES (:number, :id)"), row)
            self.messages[message.id] = replace(message, type=event.type, payload=event.payload)
            if message.id in self.refused:
                raise Reject("refused")

        return take

    def refuse(self, id: str) -> None:  # noqa: A002
        self.refused.add(id)

    def arrived(self) -> Sequence[Message]:
        """What is committed, in its order."""
        with self.engine.connect() as connection:
            taken = connection.execute(text("SELECT message_id FROM taken ORDER BY number")).scalars()
            return [self.messages[id_] for id_ in taken]


@pytest.mark.parametrize("case", conformance.POINT_TO_POINT, ids=lambda case: case.__name__)
async def test_handlers_in_the_process_conform(
    case: conformance.Case, engine: Engine, async_engine: AsyncEngine
) -> None:
    await case(Direct(engine, async_engine))
