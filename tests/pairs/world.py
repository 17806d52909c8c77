"""One scenario on real servers: four messages of two keys, from whoever adds them to their effects."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI
from sqlalchemy import BigInteger, Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outboxkit import Message, Reject, effects, event, inbox, inbox_handler, outbox, tables
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.operators.deadletters import DeadLetters, Selection
from outboxkit.operators.deadletters.resolving import Resolved
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.operators.replay import Replayed, Replayer, ReplaySelection
from outboxkit.runtime import compose, process, settings
from tests.pairs.features import Scenario
from tests.support.http_destination import Call, Destination, Say, say
from tests.support.plain_client import PlainClient, keyed
from tests.support.polling import eventually_async

MESSAGES, KEYS = 4, 2
PAD = "x" * 2048
"""So long that a payload is compressed."""
SHORTLY = timedelta(milliseconds=300)


class Tables(DeclarativeBase):
    pass


class Effect(Tables):
    __tablename__ = "pairs_effect"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    message_id: Mapped[str]
    number: Mapped[int]


@event("PairHappened")
@dataclass(frozen=True)
class Happened:
    number: int
    pad: str = PAD


@event("PairPacked", compress="gzip")
@dataclass(frozen=True)
class Packed:
    number: int
    pad: str = PAD


@event("PairOld")
@dataclass(frozen=True)
class Old:
    number: int
    pad: str = PAD


@event("PairRenamed", aliases=("PairOld",))
@dataclass(frozen=True)
class Renamed:
    number: int
    pad: str = PAD


@event("PairAsked")
@dataclass(frozen=True)
class Asked:
    number: int


@event("PairCharge", destination="pairs", reply="PairHappened")
@dataclass(frozen=True)
class Charge:
    number: int


@event("PairChargeOld", destination="pairs", reply="PairOld")
@dataclass(frozen=True)
class ChargeOld:
    number: int


CHARGES: dict[str, type[Any]] = {"plain": Charge, "renamed": ChargeOld}
SENT: dict[str, type[Any]] = {"plain": Happened, "compressed": Packed, "renamed": Old, "foreign": Happened}
HANDLED = SENT | {"renamed": Renamed}


@dataclass
class World:
    """The servers, and what each attempt has seen.

    Attributes:
        attempts: how often the handler was called for each number, whatever became of it.
        calls: how often the API was called for each number.
        is_mended: whether the handler has stopped to reject.
    """

    scenario: Scenario
    url: str
    broker: PlainClient
    engine: Engine
    async_engine: AsyncEngine
    attempts: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)
    is_mended: bool = False

    async def play(self) -> None:
        """Add, publish, handle, with what the scenario has in between. The queue is there before anything is sent."""
        Tables.metadata.create_all(self.engine)
        self.broker.bind("#", queue=self.tap)
        await self._consume()
        if self.scenario["queue"] == "paused":
            with self.engine.begin() as connection:
                pause_process(connection, "consumer", self.broker.queue, why="to see what waits")
        await self._add()
        await self._publish()
        if self.scenario["copies"] == "two":
            self._publish_again()
        if self.scenario["queue"] == "paused":
            await self._consume()
            assert not self.attempts, "a paused queue was consumed"
            with self.engine.begin() as connection:
                assert resume_process(connection, "consumer", self.broker.queue)
        await self._consume_until(self._are_all_decided)
        if self.scenario["first attempt"] == "rejected":
            assert not self.effects()
            self.is_mended = True
            await DeadLetters(self.async_engine).resolve("replayed", Selection(), asyncio.Event(), Resolved())
            await self._publish()
            await self._consume_until(lambda: len(self.effects()) >= MESSAGES)
        if self.scenario["copies"] == "replayed":
            await self._replay()
        await self._consume()

    @property
    def tap(self) -> str:
        return f"{self.broker.queue}.tap"

    def effects(self) -> list[int]:
        """The numbers of the messages that had an effect, in the order of the effects."""
        with Session(self.engine) as session:
            return list(session.scalars(select(Effect.number).order_by(Effect.id)))

    def ids(self) -> set[str]:
        """Their message ids."""
        with Session(self.engine) as session:
            return set(session.scalars(select(Effect.message_id)))

    def left(self) -> tuple[int, int]:
        """The rows of the outbox, and the open dead letters."""
        dead = tables.dead_letter
        with self.engine.connect() as connection:
            rows = connection.scalar(select(func.count()).select_from(tables.outbox))
            open_ = connection.scalar(select(func.count()).select_from(dead).where(dead.c.resolution.is_(None)))
        return rows or 0, open_ or 0

    def _are_all_decided(self) -> bool:
        return len(self.effects()) + self.left()[1] >= MESSAGES

    async def _add(self) -> None:
        ways = {
            "a session": self._add_in_session,
            "a repeated request": self._add_by_requests,
            "a handler": self._ask_handler,
            "an answer": self._ask_destination,
            "a stranger": self._send_foreign,
        }
        adding = ways[self.scenario["added by"]]
        await (adding() if asyncio.iscoroutinefunction(adding) else asyncio.to_thread(adding))

    def add(self, session: Session, number: int, events: dict[str, type[Any]] = SENT) -> None:
        options = {"deliver_at": datetime.now(UTC) + SHORTLY} if self.scenario["due"] == "later" else {}
        if self.scenario["expires"] != "never":
            options["expires_at"] = datetime.now(UTC) + timedelta(hours=1)
        outbox.add(session, events[self.scenario["body"]](number), key=key_of(number), **options)

    def _add_in_session(self) -> None:
        with Session(self.engine) as session, session.begin():
            for number in range(MESSAGES):
                self.add(session, number)

    async def _add_by_requests(self) -> None:
        engine = create_engine(self.url)

        def get_session() -> Iterator[Session]:
            with Session(engine) as session:
                yield session

        app = FastAPI()
        app.router.route_class = IdempotentRoute
        once = Depends(Idempotent(session=get_session, principal=None))

        @app.post("/happenings", status_code=201, dependencies=[once])
        def post(number: int, session: Annotated[Session, Depends(get_session)]) -> dict[str, int]:
            self.add(session, number)
            return {"number": number}

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            for number in range(MESSAGES):
                for _ in range(2):
                    headers = {"Idempotency-Key": f"happening-{number}"}
                    answer = await client.post("/happenings", params={"number": number}, headers=headers)
                    assert (answer.status_code, answer.json()) == (201, {"number": number})
        engine.dispose()

    async def _ask_handler(self) -> None:
        @inbox_handler("Ask")
        async def ask(session: AsyncSession, event: Asked) -> None:
            await session.run_sync(self.add, event.number)

        queue = self.broker.own(f"{self.broker.queue}.asked")
        chosen = self._settings(queue=queue, concurrency="1")
        await self._drain(chosen, ask)
        with Session(self.engine) as session, session.begin():
            for number in range(MESSAGES):
                outbox.add(session, Asked(number), key=key_of(number))
        await self._publish()
        await self._drain(chosen, ask)

    async def _ask_destination(self) -> None:
        def answer(call: Call) -> Say:
            number = json.loads(call.body)["number"]
            return say(200, json.dumps({"number": number, "pad": PAD}).encode(), content_type="application/json")

        async def are_asked() -> bool:
            async with compose.relay(self._settings(destination="pairs", broker_url=there.url)) as relay:
                await relay.drain(asyncio.Event())
            return len(there.calls) == MESSAGES

        with Session(self.engine) as session, session.begin():
            for number in range(MESSAGES):
                self.add(session, number, CHARGES)
        async with Destination(answer) as there:
            await eventually_async(are_asked, bool)

    def _send_foreign(self) -> None:
        for number in range(MESSAGES):
            envelope = {
                "specversion": "1.0",
                "id": f"foreign-{number}",
                "source": "/elsewhere",
                "type": "PairHappened",
                "partitionkey": key_of(number),
                "data": {"number": number, "pad": PAD},
            }
            self.broker.publish(
                json.dumps(envelope).encode(),
                topic="PairHappened",
                content_type="application/cloudevents+json",
                headers=keyed(key_of(number)),
            )

    async def _publish(self) -> None:
        """Run the relay until the outbox is empty."""

        async def is_empty() -> bool:
            async with compose.relay(self._settings()) as relay:
                await relay.drain(asyncio.Event())
            return self.left()[0] == 0

        await eventually_async(is_empty, bool)

    def _publish_again(self) -> None:
        """What a relay does that was killed between the last confirm and its commit."""
        for copy in self.broker.take_all(self.tap):
            if copy.routing_key != "PairAsked":
                kept = {name: value for name, value in vars(copy.properties).items() if value is not None}
                properties = {name: kept[name] for name in _PROPERTIES if name in kept}
                self.broker.publish(copy.body, topic=copy.routing_key, **properties)

    async def _replay(self) -> None:
        publisher = process.queue_publisher(self.broker.url, self.broker.queue, timeout=timedelta(seconds=10))
        selection = ReplaySelection(type=SENT[self.scenario["body"]].__outboxkit_event__.name)
        done = Replayed()
        await Replayer(self.async_engine, publisher, selection).run(asyncio.Event(), done)
        await publisher.close()
        assert done.count >= MESSAGES

    async def _consume_until(self, is_over: Callable[[], bool]) -> None:
        async def consumed() -> bool:
            await self._consume()
            return is_over()

        await eventually_async(consumed, bool)

    async def _consume(self) -> None:
        kind = self.scenario["handler"]
        more = {"ordered": {"ordered": "true"}, "shards": {"ordered": "true", "shards": "3"}}
        await self._drain(self._settings(queue=self.broker.queue, **more.get(kind, {})), self._handler(kind))

    async def _drain(self, chosen: settings.Settings, function: Callable[..., Any]) -> None:
        async with compose.consumer(chosen, [inbox.handler_of(function)], drain=True) as consumer:
            await consumer.drain(asyncio.Event())

    def _handler(self, kind: str) -> Callable[..., Any]:
        def act(session: Session, event: Any, message: Message) -> None:
            self.attempts[event.number] += 1
            session.add(Effect(message_id=message.id, number=event.number))
            session.flush()
            # A batch that fails is run again in pieces: the second call belongs to the first attempt.
            is_first = self.attempts[event.number] <= (2 if kind == "batch" else 1)
            if self.scenario["first attempt"] == "fails" and is_first:
                raise ValueError("the first attempt fails")
            if self.scenario["first attempt"] == "rejected" and not self.is_mended:
                raise Reject("it is rejected until it is mended")

        calls = self.scenario["calls"] != "nobody"

        async def handle(session: AsyncSession, event: Any, message: Message) -> None:
            async def call() -> None:
                self.calls[event.number] += 1

            if calls:
                await effects.once(async_sessionmaker(self.async_engine), call=call, on_unknown="skip")
            await session.run_sync(act, event, message)

        def handle_plainly(session: Session, event: Any, message: Message) -> None:
            if calls:
                count = partial(self.calls.update, [event.number])
                effects.once(sessionmaker(self.engine), call=count, on_unknown="skip")
            act(session, event, message)

        function: Any = handle_plainly if kind == "thread" else handle
        function.__annotations__["event"] = HANDLED[self.scenario["body"]]
        return inbox_handler("Handle", batch=kind == "batch")(function)

    def _settings(self, **more: str) -> settings.Settings:
        return settings.load(
            {
                "database_url": self.url,
                "broker_url": self.broker.url,
                "exchange": self.broker.exchange,
                "retry_delays": "100ms,200ms",
                "publish_timeout": "1s",
                "published_retention": "1d",
                "readers": "cloudevents",
            }
            | more
        )


_PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "message_id",
    "type",
    "timestamp",
    "correlation_id",
    "app_id",
)


def key_of(number: int) -> str:
    return f"key-{number % KEYS}"


def order_of(numbers: list[int]) -> list[list[int]]:
    """For each key its numbers."""
    return [[number for number in numbers if number % KEYS == key] for key in range(KEYS)]
