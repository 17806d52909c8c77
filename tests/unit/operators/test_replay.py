"""Replay: what is published again, in which order, how fast, and how far it is when it ends."""

import asyncio
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, select
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import BrokerUnavailable, Message, tables
from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Verdict
from outboxkit.codec.headers import read_delivery_headers
from outboxkit.operators.replay import Replayed, Replayer, ReplaySelection
from tests.integration.operators.kept import NOW, keep, row

SECOND = timedelta(seconds=1)


class Queue(Publisher):
    """A publisher that takes messages until it is told otherwise."""

    def __init__(self, *answers: Callable[[Sequence[Message]], Sequence[Receipt]]) -> None:
        self.taken: list[Message] = []
        self.batches: list[int] = []
        self._answers = list(answers)

    async def connect(self) -> None:
        pass

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        self.batches.append(len(batch))
        receipts = self._answers.pop(0)(batch) if self._answers else [CONFIRMED] * len(batch)
        confirmed = zip(batch, receipts, strict=True)
        self.taken += [message for message, receipt in confirmed if receipt.verdict is Verdict.CONFIRMED]
        return receipts

    async def close(self) -> None:
        pass

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.taken]


def fill(engine: Engine, count: int) -> None:
    """Messages that were published at a second each."""
    keep(engine, *(row(position, NOW + position * SECOND) for position in range(1, count + 1)))


async def replay(
    engine: AsyncEngine,
    queue: Queue,
    selection: ReplaySelection | None = None,
    *,
    stop: asyncio.Event | None = None,
    done: Replayed | None = None,
    **more: Any,
) -> Replayed:
    done = done or Replayed()
    replayer = Replayer(engine, queue, selection or ReplaySelection(), **{"monotonic": lambda: 0.0} | more)
    await replayer.run(stop or asyncio.Event(), done)
    return done


async def no_time(_: float) -> None:
    pass


async def test_they_come_in_the_order_of_publishing_and_of_position(engine: Engine, async_engine: AsyncEngine):
    order = ((3, 1), (2, 0), (1, 0), (5, -1), (4, 2))
    keep(engine, *(row(position, NOW + seconds * SECOND) for position, seconds in order))
    queue = Queue()
    await replay(async_engine, queue)
    assert queue.ids == ["m-5", "m-1", "m-2", "m-3", "m-4"]


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        (ReplaySelection(), ["m-1", "m-2", "m-3", "m-4"]),
        (ReplaySelection(type="A"), ["m-1", "m-3"]),
        (ReplaySelection(key="k"), ["m-2", "m-3"]),
        (ReplaySelection(type="A", key="k"), ["m-3"]),
        (ReplaySelection(since=NOW + 2 * SECOND), ["m-2", "m-3", "m-4"]),
        (ReplaySelection(until=NOW + 2 * SECOND), ["m-1"]),
        (ReplaySelection(since=NOW + 2 * SECOND, until=NOW + 3 * SECOND), ["m-2"]),
        (ReplaySelection(type="C"), []),
    ],
)
async def test_a_selection_holds_in_all_its_parts(
    engine: Engine, async_engine: AsyncEngine, selection: ReplaySelection, ids: list[str]
):
    for position, (kind, key) in enumerate((("A", None), ("B", "k"), ("A", "k"), ("B", None)), start=1):
        keep(engine, row(position, NOW + position * SECOND, type=kind, key=key))
    queue = Queue()
    done = await replay(async_engine, queue, selection)
    found = await Replayer(async_engine, queue, selection).find()
    assert queue.ids == ids
    assert (done.count, done.complete, found.count) == (len(ids), True, len(ids))
    assert done.upto == found.last
    assert found.first == (NOW + int(ids[0][2:]) * SECOND if ids else None)


@pytest.mark.parametrize("until", [None, datetime.now(NOW.tzinfo) + timedelta(days=1)])
async def test_what_is_published_later_is_no_part_of_it(
    engine: Engine, async_engine: AsyncEngine, until: datetime | None
):
    def publish_another(batch: Sequence[Message]) -> list[Receipt]:
        keep(engine, row(2, datetime.now(NOW.tzinfo)))
        return [CONFIRMED] * len(batch)

    fill(engine, 1)
    queue = Queue(publish_another)
    assert (await replay(async_engine, queue, ReplaySelection(until=until))).complete
    assert queue.ids == ["m-1"]


def refuse(index: int, verdict: Verdict = Verdict.UNROUTABLE) -> Callable[[Sequence[Message]], list[Receipt]]:
    def answer(batch: Sequence[Message]) -> list[Receipt]:
        refused = Receipt(verdict, "because")
        return [refused if number == index else CONFIRMED for number in range(len(batch))]

    return answer


@pytest.mark.parametrize("verdict", [Verdict.UNROUTABLE, Verdict.REJECTED])
@pytest.mark.parametrize("index", [0, 2])
async def test_it_ends_before_a_message_that_is_refused_whatever_is_confirmed_behind_it(
    engine: Engine, async_engine: AsyncEngine, verdict: Verdict, index: int
):
    fill(engine, 4)
    queue = Queue(refuse(index, verdict))
    done = await replay(async_engine, queue)
    assert (done.count, done.complete) == (index, False)
    assert done.refused == f"message m-{index + 1}: because"
    assert done.upto == (NOW + index * SECOND if index else None)
    assert len(queue.batches) == 1


async def test_a_page_without_answers_is_published_again(engine: Engine, async_engine: AsyncEngine):
    fill(engine, 3)
    queue = Queue(refuse(1, Verdict.UNKNOWN))
    assert (await replay(async_engine, queue)).count == 3
    assert queue.ids == ["m-1", "m-3", "m-1", "m-2", "m-3"]


async def test_an_outage_that_lasts_is_an_error_that_says_how_far_it_is(engine: Engine, async_engine: AsyncEngine):
    def be_away(_: Sequence[Message]) -> list[Receipt]:
        raise BrokerUnavailable("gone")

    fill(engine, 2)
    queue, done = Queue(lambda batch: [CONFIRMED] * len(batch), *[be_away] * 50), Replayed()
    with pytest.raises(BrokerUnavailable):
        await replay(async_engine, queue, done=done, rate=1, patience=timedelta(milliseconds=1), sleep=no_time)
    assert (done.count, done.upto, done.complete) == (1, NOW + SECOND, False)


@pytest.mark.parametrize(("rate", "batches"), [(2, [2, 2, 1]), (0.5, [1] * 5), (1000, [5]), (math.inf, [5])])
async def test_a_rate_is_kept(engine: Engine, async_engine: AsyncEngine, rate: float, batches: list[int]):
    fill(engine, 5)
    now = [100.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    queue = Queue()
    await replay(async_engine, queue, rate=rate, monotonic=lambda: now[0], sleep=sleep)
    assert queue.batches == batches
    assert now[0] - 100 == pytest.approx(5 / rate)


async def test_a_replay_that_goes_on_waits_for_its_own_messages_alone(engine: Engine, async_engine: AsyncEngine):
    """The first thousand were published before it was interrupted, by another process."""
    fill(engine, 3)
    slept, done = list[float](), Replayed(count=1000, total=1003)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await replay(async_engine, Queue(), done=done, rate=1, sleep=sleep)
    assert slept == [1, 2, 3]
    assert (done.count, done.complete) == (1003, True)


async def test_a_kept_message_that_went_back_to_one_handler_is_replayed_for_all(
    engine: Engine, async_engine: AsyncEngine
):
    keep(engine, row(1, NOW, queue="mails", headers=b'{"a":1,"outboxkit-handlers":["SendMail"]}'))
    queue = Queue()
    await replay(async_engine, queue)
    (message,) = queue.taken
    assert (message.queue, message.headers["a"]) == (None, 1)
    assert read_delivery_headers(message.headers).handlers == ()


async def test_the_audit_trail_has_the_count_every_two_seconds(engine: Engine, async_engine: AsyncEngine):
    fill(engine, 5)
    now, counts = [100.0], list[int]()

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(select(tables.audit.c.affected)).scalar_one())

    async def sleep(seconds: float) -> None:  # after each page
        now[0] += seconds
        counts.append(count())

    await replay(async_engine, Queue(), rate=1, monotonic=lambda: now[0], sleep=sleep)
    assert (counts, count()) == ([0, 0, 3, 3, 5], 5)


async def test_messages_that_are_deleted_meanwhile_leave_it_incomplete(engine: Engine, async_engine: AsyncEngine):
    fill(engine, 5)

    async def prune(_: float) -> None:  # it sleeps after each page
        with engine.begin() as connection:
            connection.execute(delete(tables.published).where(tables.published.c.position.in_([1, 3, 4])))

    queue = Queue()
    done = await replay(async_engine, queue, rate=2, sleep=prune)
    assert (queue.ids, done.complete, done.gone, done.total) == (["m-1", "m-2", "m-5"], False, 2, 5)
    with engine.connect() as connection:
        results = connection.execute(select(tables.audit.c.result)).scalars().all()
    assert results == ["incomplete: 2 of 5 messages were deleted meanwhile"]


async def test_a_stop_ends_it_behind_a_page(engine: Engine, async_engine: AsyncEngine):
    fill(engine, 3)
    stop, done, seen = asyncio.Event(), Replayed(), []

    async def stop_after_the_second(_: float) -> None:  # it sleeps after each page
        seen.append(done.count)
        if done.count == 2:
            stop.set()

    await replay(async_engine, Queue(), stop=stop, done=done, rate=1, sleep=stop_after_the_second)
    assert seen == [1, 2]
    assert (done.count, done.upto, done.complete) == (2, NOW + 2 * SECOND, False)


async def test_messages_by_their_ids(engine: Engine, async_engine: AsyncEngine):
    """In the order of their publishing, whatever lies between; more than a page of them, and some that are not kept."""
    keep(engine, *(row(position, NOW + (20 - position) * SECOND) for position in range(20)))
    wanted = frozenset(["m-3", "m-4", "m-9", "m-19", "nowhere"])
    selection = ReplaySelection(message_ids=wanted)
    messages = await Replayer(async_engine, Queue(), selection).find()
    assert (messages.count, messages.absent) == (4, 1)
    assert (messages.first, messages.last) == (NOW + SECOND, NOW + 17 * SECOND)
    for rate in (None, 2.0):
        queue = Queue()
        done = await replay(async_engine, queue, selection, rate=rate, sleep=no_time)
        assert (queue.ids, done.count, done.complete) == (["m-19", "m-9", "m-4", "m-3"], 4, True)
    only = ReplaySelection(message_ids=wanted, type="OrderConfirmed", until=NOW + 10 * SECOND)
    queue = Queue()
    assert (await replay(async_engine, queue, only)).count == 1
    assert queue.ids == ["m-19"]
