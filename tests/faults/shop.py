"""The application of the soak: steps of orders, and consumers of each kind that write down what they did.

No effect is unique in the database, so that one which happened twice can be seen. `SOAK_CONSUMER` names the handlers
of a process.
"""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI
from sqlalchemy import BigInteger, Engine, create_engine, func
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outboxkit import Message, effects, event, inbox_handler, outbox
from outboxkit.http.asgi import IdempotencyMiddleware, step, steps
from outboxkit.http.fastapi import Idempotent, IdempotentRoute
from outboxkit.runtime import process

CONSUMERS = {
    "plain": ("PlainStep", "ThreadStep"),
    "batch": ("BatchStep",),
    "ordered": ("OrderedStep",),
    "sharded": ("ShardedStep",),
}
"""The handlers of a step, by the consumer that has them."""
ORDERED = (*CONSUMERS["ordered"], *CONSUMERS["sharded"])
FAILING = "FailingHandler"
NOTING = "NoteBatch"
ECHO = "Echoed"


class Tables(DeclarativeBase):
    pass


class Made(Tables):
    """A message, in the transaction that adds it."""

    __tablename__ = "soak_made"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    message_id: Mapped[str]
    type: Mapped[str]
    subject: Mapped[str]
    key: Mapped[str]
    step: Mapped[int]
    at: Mapped[float] = mapped_column(server_default=func.extract("epoch", func.clock_timestamp()))


class Effect(Tables):
    __tablename__ = "soak_effect"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    message_id: Mapped[str]
    handler: Mapped[str]
    at: Mapped[float] = mapped_column(server_default=func.extract("epoch", func.clock_timestamp()))


@event("StepTaken")
@dataclass(frozen=True)
class StepTaken:
    subject: str


@event("PoisonAdded")
@dataclass(frozen=True)
class PoisonAdded:
    """Its handler fails until the file `SOAK_MENDED` is there."""

    subject: str


@event(ECHO)
@dataclass(frozen=True)
class Echoed:
    subject: str


@event("NoteTaken")
@dataclass(frozen=True)
class NoteTaken:
    """One of many in a transaction, handled in batches: the mass of a long run."""

    subject: str


@event("OnceAsked")
@dataclass(frozen=True)
class OnceAsked:
    """Its handler asks a service of somebody else."""

    subject: str


@event("Charge", destination="outside", reply="Charged")
@dataclass(frozen=True)
class Charge:
    subject: str


Added = StepTaken | PoisonAdded | Echoed | NoteTaken | OnceAsked | Charge


def add(session: Session, event: Added, *, key: str = "", step: int = 0) -> None:
    """A message, and what the checker must know of it."""
    message = outbox.add(session, event, key=key or None)
    session.add(Made(message_id=message.id, type=message.type, subject=event.subject, key=key, step=step))


def done(message: Message, handler: str) -> Effect:
    return Effect(message_id=message.id, handler=handler)


chosen = os.environ.get("SOAK_CONSUMER")

if chosen == "plain":

    @inbox_handler("PlainStep")
    async def plain(session: AsyncSession, event: StepTaken, message: Message) -> None:
        session.add(done(message, "PlainStep"))
        await session.run_sync(add, Echoed(f"echo of {event.subject}"))

    @inbox_handler("ThreadStep")
    def thread(session: Session, event: StepTaken, message: Message) -> None:
        session.add(done(message, "ThreadStep"))

elif chosen == "batch":

    @inbox_handler("BatchStep", batch=True)
    def batch(session: Session, event: StepTaken, message: Message) -> None:
        session.add(done(message, "BatchStep"))

    @inbox_handler(NOTING, batch=True)
    def note(session: Session, event: NoteTaken, message: Message) -> None:
        session.add(done(message, NOTING))

elif chosen == "ordered":

    @inbox_handler("OrderedStep")
    async def ordered(session: AsyncSession, event: StepTaken, message: Message) -> None:
        session.add(done(message, "OrderedStep"))

elif chosen == "sharded":

    @inbox_handler("ShardedStep")
    def sharded(session: Session, event: StepTaken, message: Message) -> None:
        session.add(done(message, "ShardedStep"))

elif chosen == "once":
    effect_sessions = sessionmaker(create_engine(os.environ["OUTBOXKIT_DATABASE_URL"], pool_pre_ping=True))

    @inbox_handler("OnceStep")
    def ask(session: Session, event: OnceAsked, message: Message) -> None:
        def call() -> None:
            headers = {"Idempotency-Key": message.id}
            httpx.post(os.environ["OUTSIDE_URL"], headers=headers, trust_env=False).raise_for_status()

        effects.once(effect_sessions, call=call, on_unknown="skip")
        session.add(done(message, "OnceStep"))

elif chosen == "failing":

    @inbox_handler(FAILING)
    def fail(session: Session, event: PoisonAdded, message: Message) -> None:
        session.add(done(message, FAILING))
        session.flush()
        if not Path(os.environ["SOAK_MENDED"]).exists():
            raise ValueError(f"{event.subject} cannot be handled")


def web() -> FastAPI:
    """The door: a step for each POST, under the client's key."""
    engine: Engine = create_engine(os.environ["OUTBOXKIT_DATABASE_URL"], pool_size=40, pool_pre_ping=True)

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    app = FastAPI()
    app.router.route_class = IdempotentRoute
    once = Depends(Idempotent(session=get_session, principal=None))

    @app.post("/steps", status_code=201, dependencies=[once])
    def place(subject: str, session: Annotated[Session, Depends(get_session)]) -> dict[str, str]:
        add(session, StepTaken(subject))
        return {"subject": subject}

    return app


def async_web() -> FastAPI:
    """The same door, with an `AsyncSession`."""
    engine = create_async_engine(os.environ["OUTBOXKIT_DATABASE_URL"], pool_size=40, pool_pre_ping=True)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session:
            yield session

    app = FastAPI()
    app.router.route_class = IdempotentRoute
    once = Depends(Idempotent(session=get_session, principal=None))

    @app.post("/steps", status_code=201, dependencies=[once])
    async def place(subject: str, session: Annotated[AsyncSession, Depends(get_session)]) -> dict[str, str]:
        await session.run_sync(add, StepTaken(subject))
        return {"subject": subject}

    return app


def leased_web() -> FastAPI:
    """A door in steps: one asks a service of somebody else, under the step's own key."""
    sessions = async_sessionmaker(process.engine(os.environ["OUTBOXKIT_DATABASE_URL"], name="shop"))
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, session_factory=sessions, principal=None, lease=timedelta(seconds=3))

    @app.post("/steps", status_code=201)
    async def place(subject: str) -> dict[str, str]:
        async def ask() -> str:
            headers = {"Idempotency-Key": f"{subject}: {steps().key('ask')}"}
            async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
                answer = await client.post(os.environ["OUTSIDE_URL"], headers=headers)
            return str(answer.raise_for_status().json()["subject"])

        return {"subject": subject, "asked": await step("ask", ask)}

    return app
