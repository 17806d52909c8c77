"""The audit trail, on SQLite: who did what, and how it ended."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import tables
from outboxkit.operators.audit import MOST_NAMED, AuditedAction, filter_of, read_actions, record_action, recorded
from outboxkit.operators.deadletters import Selection

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def actions(engine: Engine, *, since: datetime = LONG_AGO, limit: int = 100) -> list[AuditedAction]:
    with engine.connect() as connection:
        return read_actions(connection, since=since, limit=limit)


def test_the_newest_action_comes_first(engine: Engine):
    with engine.begin() as connection:
        for number in range(3):
            record_action(connection, "pause", {"queue": str(number)}, by="ada", count=number, result="done")
    assert [(one.filter, one.count) for one in actions(engine)] == [({"queue": str(n)}, n) for n in (2, 1, 0)]
    assert [one.count for one in actions(engine, limit=2)] == [2, 1]
    assert actions(engine, since=datetime.now(UTC) + timedelta(hours=1)) == []
    (last, *_) = actions(engine)
    assert (last.action, last.operator, last.result) == ("pause", "ada", "done")
    assert last.ended_at == last.started_at


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("amqp://user:hunter2@host/vhost", "amqp://host/vhost"),
        ("from psycopg://u:hunter2@db/shop to amqps://v:hunter2@mq", "from psycopg://db/shop to amqps://mq"),
        ("ada@example.org", "ada@example.org"),
        ("nul\0", "nul\\0"),
    ],
)
def test_no_secret_is_kept(engine: Engine, text: str, kept: str):
    with engine.begin() as connection:
        record_action(connection, "pause", {"why": text, "all": [text]}, by="ada", result=f"failed: {text}")
    (one,) = actions(engine)
    assert (one.filter, one.result) == ({"why": kept, "all": [kept]}, f"failed: {kept}")


def test_a_filter_names_what_was_asked_for_and_no_more_than_it_can(engine: Engine):
    asked = filter_of(Selection(type="OrderConfirmed", message_ids=tuple(map(str, range(MOST_NAMED + 5)))))
    assert asked.keys() == {"type", "message_ids"}
    with engine.begin() as connection:
        record_action(connection, "dead replay", asked, by="ada", result="done")
    (one,) = actions(engine)
    assert one.filter["type"] == "OrderConfirmed"
    assert one.filter["message_ids"][-2:] == [str(MOST_NAMED - 1), "and 5 more"]


async def test_an_action_of_many_transactions_counts_in_each(engine: Engine, async_engine: AsyncEngine):
    async with recorded(async_engine, "dead replay", {}, by="ada") as running:
        for count in (5, 7):
            async with async_engine.begin() as connection:
                await running.count(connection, count)
            (one,) = actions(engine)
            assert (one.count, one.ended_at, one.result) == (count if count == 5 else 12, None, None)
    (one,) = actions(engine)
    assert (one.count, one.result, one.operator) == (12, "done", "ada")
    assert one.ended_at is not None


@pytest.mark.parametrize(
    ("error", "result"),
    [(ValueError("no such thing"), "failed: ValueError: no such thing"), (asyncio.CancelledError(), "stopped")],
)
async def test_it_says_how_it_failed(engine: Engine, async_engine: AsyncEngine, error: BaseException, result: str):
    with pytest.raises(type(error)):
        async with recorded(async_engine, "prune", {}, by="ada"):
            raise error
    (one,) = actions(engine)
    assert one.result == result


async def test_a_database_that_is_gone_hides_no_error(engine: Engine, async_engine: AsyncEngine):
    async def fail() -> None:
        async with recorded(async_engine, "prune", {}, by="ada"):
            with engine.begin() as connection:
                tables.audit.drop(connection)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()
