"""What is given up, on PostgreSQL and on SQLite: dead letters, parked keys, what expired, what is forgotten or kept."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import Message, tables
from outboxkit.brokers import Verdict
from outboxkit.relay import Drained, Relay, RelayPolicy
from outboxkit.tables import PARKED
from tests.integration.relay.recording import NOW, Recorder, relay, rows, running
from tests.support.polling import eventually_async

NEW = {"type": "T", "payload": b"{}", "headers": b"{}", "content_type": "application/json", "created_at": NOW}
AT_ONCE = RelayPolicy(max_attempts=1)


def add(engine: Engine, *ids: str, **columns: Any) -> None:
    """Messages of these ids, whose key is their first letter."""
    with engine.begin() as connection:
        for id_ in ids:
            connection.execute(insert(tables.outbox).values(NEW | {"message_id": id_, "key": id_[0]} | columns))


def told(**verdicts: Verdict) -> Recorder:
    def answer(message: Message) -> Verdict:
        return verdicts.get(message.id, Verdict.CONFIRMED)

    return Recorder(answer)


async def drained(engine: AsyncEngine, recorder: Recorder, policy: RelayPolicy = AT_ONCE, **more: Any) -> Drained:
    done = await Relay(engine, recorder, policy=policy, batch_size=3, **more).drain(asyncio.Event())
    assert engine.pool.checkedout() == 0
    return done


def waits(engine: Engine) -> Sequence[tuple[str, bool, Any]]:
    return [(row.message_id, row.held, row.due_at) for row in rows(engine)]


def dead(engine: Engine) -> Sequence[tuple[Any, ...]]:
    found = rows(engine, tables.dead_letter)
    return [(row.message_id, row.reason, row.error, row.attempts, row.parked, row.position) for row in found]


async def test_a_rejected_message_parks_its_key_and_no_other(engine: Engine, async_engine: AsyncEngine):
    add(engine, "a1", "a2", "b1", "a3", "b2", "a4", "a5")
    recorder = told(a2=Verdict.REJECTED)
    done = await drained(async_engine, recorder)
    assert recorder.arrived == ["a1", "b1", "b2"]
    assert dead(engine) == [("a2", "rejected", "rejected: told so", 1, True, 2)]
    assert waits(engine) == [(id_, True, PARKED) for id_ in ("a3", "a4", "a5")]
    assert (done.published, done.dead, done.blocked, done.later) == (3, {"T": (1, "rejected: told so")}, 0, 3)
    add(engine, "a6")
    await drained(async_engine, recorder)
    assert waits(engine)[-1] == ("a6", True, PARKED)


async def test_a_parked_key_goes_on_in_order_once_it_is_released(engine: Engine, async_engine: AsyncEngine):
    add(engine, "a1", "a2", "a3")
    recorder = told(a1=Verdict.REJECTED)
    await drained(async_engine, recorder)
    with engine.begin() as connection:
        connection.execute(update(tables.dead_letter).values(parked=False, resolution="discarded"))
        connection.execute(update(tables.outbox).where(tables.outbox.c.held).values(due_at=NOW - timedelta(hours=1)))
    add(engine, "a4", "a5")
    await drained(async_engine, recorder)
    assert recorder.arrived == ["a2", "a3", "a4", "a5"]
    assert waits(engine) == []


async def test_what_is_too_late_is_dead_and_its_key_goes_on(engine: Engine, async_engine: AsyncEngine):
    add(engine, "a1", expires_at=NOW, attempts=2)
    add(engine, "a2", expires_at=NOW + timedelta(hours=1))
    recorder = told()
    done = await drained(async_engine, recorder)
    assert recorder.arrived == ["a2"]
    assert [row[:2] + row[3:] for row in dead(engine)] == [("a1", "expired", 2, False, 1)]
    assert (done.published, done.expired, done.is_complete) == (1, 1, True)


async def test_what_nobody_wants_is_forgotten_where_that_is_wanted(engine: Engine, async_engine: AsyncEngine):
    add(engine, "a1", discard_unroutable=True)
    add(engine, "a2", "b1", "b2")
    recorder = told(a1=Verdict.UNROUTABLE, b1=Verdict.UNROUTABLE)
    done = await drained(async_engine, recorder, RelayPolicy())
    assert (recorder.arrived, done.discarded) == (["a2"], 1)
    assert [row[0] for row in waits(engine)] == ["b1", "b2"]
    with engine.begin() as connection:
        connection.execute(update(tables.outbox).values(due_at=NOW - timedelta(hours=1)))
    done = await drained(async_engine, recorder, RelayPolicy(unroutable="discard"))
    assert (recorder.arrived, done.discarded, waits(engine), dead(engine)) == (["a2", "b2"], 1, [], [])


async def test_published_rows_are_moved_where_they_are_to_be_kept(engine: Engine, async_engine: AsyncEngine):
    add(engine, "a1", "a2", "b1", topic="t", correlation_id="c")
    before = rows(engine)
    await drained(async_engine, told(b1=Verdict.REJECTED), keep_published=True)
    assert waits(engine) == []
    kept = rows(engine, tables.published)
    assert [row.message_id for row in kept] == ["a1", "a2"]
    for row, written in zip(kept, before, strict=False):
        names = set(row._mapping) - {"published_at"}
        assert {name: row._mapping[name] for name in names} == {name: written._mapping[name] for name in names}


async def test_an_operator_at_a_dead_letter_holds_up_no_other_key(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """Rows of its key are not parked meanwhile, so that none is left when the operator releases those that are."""
    add(pg_engine, "a1", "a2")
    recorder = told(a1=Verdict.REJECTED)
    await drained(async_pg_engine, recorder)
    with pg_engine.connect() as operator:
        operator.execute(update(tables.dead_letter).values(parked=False, resolution="discarded"))
        add(pg_engine, "a3", "a4", "b1", "c1")
        async with running(relay(async_pg_engine, recorder)):
            await eventually_async(
                lambda: asyncio.to_thread(waits, pg_engine),
                lambda left: {"b1", "c1"}.isdisjoint(row[0] for row in left),
            )
            assert recorder.arrived == ["b1", "c1"], "each once"
            operator.execute(update(tables.outbox).where(tables.outbox.c.due_at == PARKED).values(due_at=NOW))
            operator.commit()
            await eventually_async(lambda: asyncio.to_thread(waits, pg_engine), lambda left: not left)
    assert recorder.arrived == ["b1", "c1", "a2", "a3", "a4"]


async def test_a_message_is_not_parked_behind_a_later_one(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """Its transaction commits late, while the later one, of the batch in front of it, is refused."""
    with pg_engine.connect() as late:
        late.execute(insert(tables.outbox).values(NEW | {"message_id": "a1", "key": "a"}))
        add(pg_engine, "a2", "a3")

        def answer(message: Message) -> Verdict:
            if message.id != "a2":
                return Verdict.CONFIRMED
            late.commit()
            return Verdict.REJECTED

        recorder = Recorder(answer)
        await Relay(async_pg_engine, recorder, policy=AT_ONCE, batch_size=1).drain(asyncio.Event())
    assert recorder.arrived == ["a1"]
    assert dead(pg_engine) == [("a2", "rejected", "rejected: told so", 1, True, 2)]
    assert waits(pg_engine) == [("a3", True, PARKED)]
