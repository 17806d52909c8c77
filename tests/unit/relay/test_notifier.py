"""When an idle relay waits, pauses or goes on, by what its listener says; the real one is in the integration tests."""

import asyncio
from collections import deque
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outboxkit.relay.notifier import CAUGHT_UP_SECONDS, Notifier
from outboxkit.runtime import process

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = (None, None)
POLL, FALLBACK = timedelta(seconds=100), timedelta(seconds=2)


class ScriptedListener:
    """Answers as it was told to, and writes down what it was asked. Each wait takes the time that it was given."""

    def __init__(self, *answers: tuple[int | None, datetime | None], is_notified: bool = True) -> None:
        self.is_notified = self.is_registered = is_notified
        self.answers = deque(answers)
        self.heard: deque[bool] = deque()
        self.now = 0.0
        self.waits: list[float] = []
        self.floors: list[int] = []
        self.registered = self.withdrawn = 0

    async def connect(self) -> None:
        pass

    async def register(self) -> None:
        self.registered += 1

    async def withdraw(self) -> None:
        self.withdrawn += 1

    async def query(self, floor: int) -> tuple[int | None, datetime | None]:
        self.floors.append(floor)
        return self.answers.popleft() if self.answers else NOTHING

    async def wait_for_notification(self, stop: asyncio.Event, seconds: float) -> bool:
        notified = self.heard.popleft() if self.heard else False
        self.waits.append(seconds)
        self.now += 0 if notified else seconds
        return notified


@pytest.fixture
def engine() -> AsyncEngine:
    return create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")


def made(engine: AsyncEngine, listener: ScriptedListener) -> Notifier:
    notifier = Notifier(
        engine, poll_interval=POLL, fallback_poll=FALLBACK, clock=lambda: NOW, monotonic=lambda: listener.now
    )
    notifier._listener = listener  # type: ignore[assignment]
    return notifier


async def test_the_listener_is_registered_before_the_query(engine: AsyncEngine):
    listener = ScriptedListener((7, None))
    await made(engine, listener).wait(asyncio.Event(), floor=5)
    assert (listener.registered, listener.floors, listener.waits) == (1, [5], [])


async def test_it_waits_until_the_next_message_is_due_and_no_longer_than_the_fallback_poll(engine: AsyncEngine):
    soon, later = NOW + timedelta(seconds=0.5), NOW + timedelta(days=1)
    listener = ScriptedListener((None, later), (None, soon), (None, NOW))
    await made(engine, listener).wait(asyncio.Event())
    assert FALLBACK.total_seconds() / 2 <= listener.waits[0] <= FALLBACK.total_seconds() * 1.5
    assert listener.waits[1:] == [0.5]


@pytest.mark.parametrize("held", [(7, None), (None, NOW - timedelta(seconds=3))])
async def test_what_cannot_be_had_is_reported_once_a_wait(
    engine: AsyncEngine, held: tuple[int | None, datetime | None]
):
    listener = ScriptedListener(*[held] * 5)
    notifier = made(engine, listener)
    await notifier.wait(asyncio.Event())
    assert listener.waits == []
    await notifier.wait(asyncio.Event())
    assert len(listener.waits) == 1
    await notifier.wait(asyncio.Event())
    assert len(listener.waits) == 2


async def test_something_done_in_between_makes_the_next_query_count(engine: AsyncEngine):
    listener = ScriptedListener((7, None), (8, None))
    notifier = made(engine, listener)
    await notifier.wait(asyncio.Event())
    await notifier.busy()
    await notifier.wait(asyncio.Event())
    assert listener.waits == []


async def test_a_relay_that_has_caught_up_queries_at_most_every_tenth_of_a_second(engine: AsyncEngine):
    listener = ScriptedListener((None, NOW + timedelta(days=1)), (9, None))
    listener.heard += [True, True]
    notifier = made(engine, listener)
    for _ in range(2):
        await notifier.wait(asyncio.Event(), caught_up=True)
        await notifier.busy()
    assert (len(listener.floors), len(listener.waits)) == (1, 2)
    await notifier.wait(asyncio.Event(), caught_up=True)
    assert (len(listener.floors), listener.waits[2:]) == (2, [CAUGHT_UP_SECONDS])


@pytest.mark.parametrize("due_at", [NOW, NOW - timedelta(seconds=1)])
async def test_a_relay_that_has_caught_up_queries_at_once_for_what_is_due(engine: AsyncEngine, due_at: datetime):
    listener = ScriptedListener((None, due_at), (9, None))
    notifier = made(engine, listener)
    for _ in range(2):
        await notifier.wait(asyncio.Event(), caught_up=True)
        await notifier.busy()
    assert (len(listener.floors), listener.waits) == (2, [])


async def test_a_relay_that_is_not_notified_is_not_registered_and_polls(engine: AsyncEngine):
    listener = ScriptedListener(is_notified=False)
    await made(engine, listener).wait(asyncio.Event())
    assert listener.registered == 0
    assert all(POLL.total_seconds() / 2 <= seconds <= POLL.total_seconds() * 1.5 for seconds in listener.waits)


async def test_a_relay_of_another_destination_does_not_listen_and_polls(engine: AsyncEngine):
    """Nor does it connect: nobody is there."""
    notifier = Notifier(engine, destination="payments", poll_interval=timedelta(milliseconds=1))
    await notifier.wait(asyncio.Event())
    await notifier.busy()
    await notifier.close()


async def test_on_sqlite_it_polls(sqlite_url: str):
    engine = process.engine(sqlite_url, name="relay")
    notifier = Notifier(engine, poll_interval=timedelta(milliseconds=1))
    await notifier.wait(asyncio.Event())
    await notifier.busy()
    stopped = asyncio.Event()
    stopped.set()
    await Notifier(engine, poll_interval=timedelta(days=1)).wait(stopped)
    await notifier.close()
    await engine.dispose()
