"""Retention: what is forgotten, and what never is."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from outboxkit import inbox, tables
from outboxkit.errors import sqlstates
from outboxkit.runtime.retention import Periods, Pruned, Retention
from tests.unit.shop import NOW, count, message, rows

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
SKEW = Periods(inbox=DAY).skew


def remember(engine: Engine, *processed_at: datetime) -> None:
    with engine.begin() as connection:
        connection.execute(
            insert(tables.inbox),
            [
                {"handler": "H", "message_id": f"m-{number}", "type": "T", "processed_at": moment}
                for number, moment in enumerate(processed_at)
            ],
        )


@pytest.fixture
async def retention(async_engine: AsyncEngine) -> AsyncIterator[Retention]:
    return Retention(async_engine, Periods(inbox=DAY), batch_size=3, clock=lambda: NOW)


async def test_only_what_is_old_enough_is_forgotten(retention: Retention, engine: Engine, database_url: str):
    limit = NOW - DAY - SKEW
    remember(engine, limit - SECOND, limit, limit + SECOND, NOW - DAY, NOW, NOW + DAY)
    assert (await retention.prune()).inbox == 1
    assert [row["message_id"] for row in rows(database_url, tables.inbox)] == [f"m-{number}" for number in range(1, 6)]


async def test_a_forgotten_message_is_stale_to_every_consumer(retention: Retention, engine: Engine, database_url: str):
    for age in (timedelta(0), DAY, DAY + SKEW, DAY + SKEW + SECOND, 3 * DAY):
        with engine.begin() as connection:
            connection.execute(tables.inbox.delete())
        remember(engine, NOW - age)
        forgotten = (await retention.prune()).inbox == 1
        handled = message(id="foreign", created_at=NOW - age)
        assert not forgotten or inbox.is_stale(handled, now=NOW, retention=DAY)


@pytest.mark.parametrize("found", [0, 1, 2, 3, 4, 6, 7])
async def test_batches_go_on_until_all_is_forgotten(
    retention: Retention, engine: Engine, async_engine: AsyncEngine, database_url: str, found: int
):
    if found:
        remember(engine, *[NOW - 3 * DAY] * found)
    commits: list[object] = []
    event.listen(async_engine.sync_engine, "commit", commits.append)
    assert (await retention.prune()).inbox == found
    assert count(database_url, tables.inbox) == 0
    others = ("the check", "the counted attempts", "the handlers", "the idempotency keys", "the effects")
    assert len(commits) == (found // 3 + 1) + len(others), "a transaction for each batch, and one for each of others"


async def test_others_get_a_turn_between_two_batches(async_engine: AsyncEngine, engine: Engine):
    remember(engine, *[NOW - 3 * DAY] * 7)
    slept: list[float] = []
    counted, done = list[int](), Pruned()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        counted.append(done.inbox)

    worker = Retention(async_engine, Periods(inbox=DAY), batch_size=3, pause=3 * SECOND, clock=lambda: NOW, sleep=sleep)
    assert (await worker.prune(done)).inbox == 7
    assert (slept, counted) == ([3.0, 3.0], [3, 6]), "the counts are those of each batch"


async def test_a_stop_is_heard_between_two_batches(async_engine: AsyncEngine, engine: Engine, database_url: str):
    remember(engine, *[NOW - 3 * DAY] * 7)
    stop = asyncio.Event()

    async def sleep(_: float) -> None:
        stop.set()

    worker = Retention(async_engine, Periods(inbox=DAY), batch_size=3, clock=lambda: NOW, sleep=sleep)
    with capture_logs() as logs:
        await worker.run(stop, interval=DAY)
    assert count(database_url, tables.inbox) == 4, "one batch was deleted, the rest is left to the next round"
    assert [line["rows"] for line in logs if line["event"] == "inbox pruned"] == [3]


async def test_old_dead_letters_go_where_that_is_wanted(async_engine: AsyncEngine, engine: Engine, database_url: str):
    bury(engine, *range(9))
    with engine.begin() as connection:
        letters = tables.dead_letter
        connection.execute(letters.update().where(letters.c.attempts == 8).values(parked=True))
        connection.execute(letters.update().where(letters.c.attempts == 6).values(resolution="discarded"))
    periods = Periods(inbox=DAY, dead=3 * DAY)
    done = await Retention(async_engine, periods, batch_size=2, clock=lambda: NOW).prune()
    assert (done.dead, done.dead_open) == (4, 3)
    assert [row["attempts"] for row in rows(database_url, tables.dead_letter)] == [0, 1, 2, 3, 8]


async def test_counted_attempts_go_with_the_window(retention: Retention, engine: Engine, database_url: str):
    touched = [{"queue": "q", "message_id": str(days), "touched_at": NOW - days * DAY} for days in range(6)]
    with engine.begin() as connection:
        connection.execute(insert(tables.attempt), touched)
    assert (await retention.prune()).attempts == 4
    assert [row["message_id"] for row in rows(database_url, tables.attempt)] == ["0", "1"]


def bury(engine: Engine, *days: int) -> None:
    row = {
        "side": "inbox",
        "payload": b"",
        "headers": b"{}",
        "content_type": "application/json",
        "reason": "failed",
    }
    with engine.begin() as connection:
        rows = [row | {"attempts": number, "dead_at": NOW - number * DAY} for number in days]
        connection.execute(insert(tables.dead_letter), rows)


def keep(engine: Engine, *published_at: datetime) -> None:
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        rows = [row | {"published_at": moment, "position": number} for number, moment in enumerate(published_at)]
        connection.execute(insert(tables.published), rows)


async def test_kept_messages_go_when_they_are_old_enough(async_engine: AsyncEngine, engine: Engine, database_url: str):
    keep(engine, *[NOW - 3 * DAY] * 7, NOW - 2 * DAY - SECOND, NOW - 2 * DAY, NOW)
    retention = Retention(async_engine, Periods(inbox=DAY, published=2 * DAY), batch_size=3, clock=lambda: NOW)
    done = await retention.prune()
    assert (done.published, done.untouched, done.problems) == (8, False, [])
    assert [row["position"] for row in rows(database_url, tables.published)] == [8, 9]


async def test_without_a_retention_kept_messages_are_left_alone(
    retention: Retention, engine: Engine, database_url: str
):
    assert not (await retention.prune()).untouched
    keep(engine, NOW - 900 * DAY)
    assert (await retention.prune()).untouched
    assert count(database_url, tables.published) == 1


async def test_it_runs_until_it_is_stopped(async_engine: AsyncEngine, engine: Engine, database_url: str):
    remember(engine, NOW - 3 * DAY)
    stop, asked = asyncio.Event(), []

    def clock() -> datetime:
        asked.append(NOW)
        if len(asked) == 3:
            stop.set()
        return NOW

    worker = Retention(async_engine, Periods(inbox=DAY), clock=clock)
    with capture_logs() as said:
        await worker.run(stop, interval=timedelta(milliseconds=1))
    assert [line["rows"] for line in said if line["event"] == "inbox pruned"] == [1, 0, 0]
    assert count(database_url, tables.inbox) == 0


async def test_a_step_that_is_cancelled_is_tried_again(
    async_engine: AsyncEngine, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    class Cancelled(Exception):
        sqlstate = sqlstates.CANCELED

    remember(engine, NOW - 3 * DAY)
    stop, failures = asyncio.Event(), [OperationalError("DELETE", None, Cancelled("statement timeout"))]
    whole = Retention._prune_inbox

    async def fails_once(self: Retention, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await whole(self, *arguments)
        stop.set()

    monkeypatch.setattr(Retention, "_prune_inbox", fails_once)
    await Retention(async_engine, Periods(inbox=DAY), clock=lambda: NOW).run(stop, interval=timedelta(milliseconds=1))
    assert count(database_url, tables.inbox) == 0


def request(key: str, expires_at: datetime, locked_until: datetime | None = None, **more: object) -> dict[str, object]:
    known = {"scope": "POST /orders", "principal": "ann", "key": key, "fingerprint": b"", "state": "done", "token": "t"}
    return known | {"created_at": expires_at - DAY, "expires_at": expires_at, "locked_until": locked_until} | more


def effect(key: str, used_at: datetime, locked_until: datetime | None = None) -> dict[str, object]:
    known = {"key": key, "state": "done", "token": "t", "started_at": used_at, "used_at": used_at}
    return known | {"locked_until": locked_until or used_at + SECOND}


async def test_expired_keys_are_forgotten_but_those_that_a_run_is_busy_with(
    retention: Retention, engine: Engine, database_url: str
):
    busy = {"state": "processing"}
    with engine.begin() as connection:
        requests = [
            *(request(f"old-{number}", NOW - number * SECOND) for number in range(1, 8)),
            request("its lease is over", NOW - SECOND, NOW - SECOND, **busy),
            request("expires now", NOW),
            request("new", NOW + SECOND),
            request("new, its lease is over", NOW + SECOND, NOW - SECOND, **busy),
            request("at work", NOW - SECOND, NOW + SECOND, **busy),
        ]
        connection.execute(insert(tables.idempotency), requests)
    assert (await retention.prune()).idempotency == 8
    left = {row["key"] for row in rows(database_url, tables.idempotency)}
    assert left == {"expires now", "new", "new, its lease is over", "at work"}


async def test_effects_are_remembered_for_as_long_as_the_inbox_remembers(
    retention: Retention, engine: Engine, database_url: str
):
    """The message of an effect that is forgotten is stale: nobody asks for the effect again."""
    limit = NOW - DAY - SKEW
    with engine.begin() as connection:
        effects = [
            *(effect(f"old-{number}", limit - 2 * number * SECOND) for number in range(1, 8)),
            effect("as old as may be", limit),
            effect("new", NOW),
            effect("taken over", limit - DAY, NOW + SECOND),
        ]
        connection.execute(insert(tables.effect), effects)
    done = await retention.prune()
    assert (done.effects, done.idempotency) == (7, 0)
    assert {row["key"] for row in rows(database_url, tables.effect)} == {"as old as may be", "new", "taken over"}
