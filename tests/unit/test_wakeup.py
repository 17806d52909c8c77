"""When a relay sleeps, pauses or goes on, decided by what its bell says; the real bell is in the integration tests."""

import asyncio
from collections import deque
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outboxkit import process
from outboxkit.relay import notifier
from outboxkit.relay.notifier import Notifier

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = (None, None)
POLL, NET = timedelta(seconds=100), timedelta(seconds=2)


class WrittenBell:
    """Answers as it was told to, and writes down what it was asked. Each sleep takes the time that it was given."""

    def __init__(self, *looks: tuple[int | None, datetime | None], rings: bool = True) -> None:
        self.rings = rings
        self.looks = deque(looks)
        self.heard: deque[bool] = deque()
        self.now = 0.0
        self.sleeps: list[float] = []
        self.floors: list[int] = []
        self.recorded = self.withdrawn = 0

    async def connect(self) -> None:
        pass

    async def record(self) -> None:
        self.recorded += 1

    async def withdraw(self) -> None:
        self.withdrawn += 1

    async def look(self, floor: int) -> tuple[int | None, datetime | None]:
        self.floors.append(floor)
        return self.looks.popleft() if self.looks else NOTHING

    async def wait_for_notification(self, stop: asyncio.Event, seconds: float) -> bool:
        rang = self.heard.popleft() if self.heard else False
        self.sleeps.append(seconds)
        self.now += 0 if rang else seconds
        return rang


@pytest.fixture
def engine() -> AsyncEngine:
    return create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")


def made(engine: AsyncEngine, bell: WrittenBell) -> Notifier:
    wake = Notifier(engine, poll_interval=POLL, net=NET, clock=lambda: NOW, monotonic=lambda: bell.now)
    wake._bell = bell  # type: ignore[assignment]
    return wake


async def test_the_sleeper_is_recorded_before_the_look(engine: AsyncEngine):
    bell = WrittenBell((7, None))
    await made(engine, bell).wait(asyncio.Event(), floor=5)
    assert (bell.recorded, bell.floors, bell.sleeps) == (1, [5], [])


async def test_a_ring_ends_the_sleep(engine: AsyncEngine):
    bell = WrittenBell()
    bell.heard.append(True)
    await made(engine, bell).wait(asyncio.Event())
    assert len(bell.sleeps) == 1


async def test_it_sleeps_until_the_next_message_is_due_and_no_longer_than_the_net(engine: AsyncEngine):
    soon, later = NOW + timedelta(seconds=0.5), NOW + timedelta(days=1)
    bell = WrittenBell((None, later), (None, soon), (None, NOW))
    await made(engine, bell).wait(asyncio.Event())
    assert NET.total_seconds() / 2 <= bell.sleeps[0] <= NET.total_seconds() * 1.5
    assert bell.sleeps[1:] == [0.5]


@pytest.mark.parametrize("held", [(7, None), (None, NOW - timedelta(seconds=3))])
async def test_what_cannot_be_had_is_reported_once_a_sleep(
    engine: AsyncEngine, held: tuple[int | None, datetime | None]
):
    bell = WrittenBell(*[held] * 5)
    wake = made(engine, bell)
    await wake.wait(asyncio.Event())
    assert bell.sleeps == []
    await wake.wait(asyncio.Event())
    assert len(bell.sleeps) == 1
    await wake.wait(asyncio.Event())
    assert len(bell.sleeps) == 2


async def test_something_done_in_between_makes_the_next_look_count(engine: AsyncEngine):
    bell = WrittenBell((7, None), (8, None))
    wake = made(engine, bell)
    await wake.wait(asyncio.Event())
    await wake.busy()
    await wake.wait(asyncio.Event())
    assert bell.sleeps == []


async def test_a_relay_that_nobody_can_wake_is_not_recorded_and_polls(engine: AsyncEngine):
    bell = WrittenBell(rings=False)
    await made(engine, bell).wait(asyncio.Event())
    assert bell.recorded == 0
    assert all(POLL.total_seconds() / 2 <= seconds <= POLL.total_seconds() * 1.5 for seconds in bell.sleeps)


async def test_it_comes_back_now_and_then_for_the_relays_own_look(engine: AsyncEngine):
    bell = WrittenBell()
    await made(engine, bell).wait(asyncio.Event())
    assert notifier.TURN_SECONDS <= bell.now <= notifier.TURN_SECONDS + NET.total_seconds() * 1.5


async def test_turns_without_a_sleep_are_a_rush_which_ends(engine: AsyncEngine):
    bell = WrittenBell()
    wake = made(engine, bell)
    for _ in range(notifier.RUSH_TURNS - 1):
        await wake.busy()
    assert bell.withdrawn == 0
    await wake.busy()
    assert bell.withdrawn == 1
    await wake.wait(asyncio.Event())
    assert bell.recorded == 0
    bell.now += notifier.RUSH_SECONDS
    await wake.wait(asyncio.Event())
    assert bell.recorded > 0


async def test_few_long_turns_are_a_rush(engine: AsyncEngine):
    bell = WrittenBell()
    wake = made(engine, bell)
    for _ in range(notifier.LONG_TURNS):
        assert bell.withdrawn == 0
        await wake.busy()
        bell.now += notifier.LONG_SECONDS
    assert bell.withdrawn == 1


async def test_rings_in_quick_succession_are_a_rush_too(engine: AsyncEngine):
    bell = WrittenBell()
    bell.heard.extend([True] * notifier.RUSH_TURNS)
    wake = made(engine, bell)
    for _ in range(notifier.RUSH_TURNS):
        await wake.wait(asyncio.Event())
    assert bell.withdrawn == 1


async def test_a_sleep_between_turns_means_no_rush(engine: AsyncEngine):
    bell = WrittenBell()
    wake = made(engine, bell)
    for _ in range(notifier.RUSH_TURNS * 2):
        await wake.busy()
        await wake.wait(asyncio.Event())
    assert bell.withdrawn == 0


async def test_a_relay_of_another_destination_has_no_bell_and_polls(engine: AsyncEngine):
    """Nor does it connect: nobody is there."""
    wake = Notifier(engine, destination="payments", poll_interval=timedelta(milliseconds=1))
    await wake.wait(asyncio.Event())
    await wake.busy()
    await wake.close()


async def test_on_sqlite_it_polls(sqlite_url: str):
    engine = process.engine(sqlite_url, name="relay")
    wake = Notifier(engine, poll_interval=timedelta(milliseconds=1))
    await wake.wait(asyncio.Event())
    await wake.busy()
    stopped = asyncio.Event()
    stopped.set()
    await Notifier(engine, poll_interval=timedelta(days=1)).wait(stopped)
    await wake.close()
    await engine.dispose()
