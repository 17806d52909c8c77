"""What was discarded is not done later: neither a replay of kept messages nor a redelivery runs its handler."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import Message, OutboxkitError, Outcome, event, inbox, inbox_handler, tables
from outboxkit.codec.headers import read_delivery_headers
from outboxkit.operators.deadletters import DeadLetters, Selection
from outboxkit.operators.replay import Replayed, Replayer
from outboxkit.operators.replay import ReplaySelection as Kept
from outboxkit.statements import published
from tests.integration.operators.dead_rows import buried, dead, fill
from tests.integration.operators.kept import NOW, keep, row
from tests.integration.operators.test_deadletters import discard, replay
from tests.support.ledger_requests import waiting
from tests.support.polling import eventually_async
from tests.unit.operators.test_replay import Queue


@event("Ordered")
@dataclass
class Ordered:
    number: int


@inbox_handler("billing.IssueInvoice")
def issue(session: Session, event: Ordered) -> None: ...


@inbox_handler("billing.CountSale")
def count(session: Session, event: Ordered) -> None: ...


def handled(engine: Engine, handler: Any, id_: str) -> Outcome:
    with Session(engine) as session, session.begin():
        return inbox.run_once(session, Message(id_, "Ordered", b'{"number":1}'), handler)


async def test_a_handler_that_was_discarded_does_not_run_any_more(engine: Engine, async_engine: AsyncEngine):
    given_up = [("two", "billing.IssueInvoice"), ("one", "billing.IssueInvoice"), ("one", None)]
    given_up += [(None, "billing.IssueInvoice")]
    fill(engine, [buried(id_, handler=handler) for id_, handler in given_up])
    fill(engine, [dead(1)])
    assert handled(engine, issue, "two") is Outcome.PROCESSED  # a redelivery was faster
    assert (await discard(async_engine)).count == 5
    assert handled(engine, issue, "one") is Outcome.DUPLICATE
    assert handled(engine, count, "one") is Outcome.PROCESSED, "the other handler of the message is not concerned"


async def test_it_is_remembered_for_as_long_as_a_handled_one(engine: Engine, async_engine: AsyncEngine):
    ahead = datetime.now(UTC) + timedelta(hours=1)  # by the clock of its producer
    fill(engine, [buried("one", created_at=ahead)])
    await discard(async_engine)
    with engine.connect() as connection:
        assert connection.execute(select(tables.inbox.c.processed_at)).scalar_one() == ahead


async def test_a_discard_that_waits_for_a_consumer_holds_no_message_behind_its_own(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    handled_now = {"handler": "H", "type": "Ordered"}
    fill(pg_engine, [buried(each, handler="H") for each in "ba"])
    with pg_engine.connect() as consumer:
        consumer.execute(insert(tables.inbox).values(message_id="a", **handled_now))
        discarding = asyncio.create_task(discard(async_pg_engine))
        await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine))
        consumer.execute(text("SET LOCAL lock_timeout = '10s'"))
        consumer.execute(insert(tables.inbox).values(message_id="b", **handled_now))
        consumer.commit()
    assert (await discarding).count == 2


async def test_a_replay_can_be_for_some_handlers(engine: Engine, async_engine: AsyncEngine):
    keep(engine, row(1, NOW))
    queue, done = Queue(), Replayed()
    chosen = Kept(handlers=("billing.CountSale", "billing.Sales"))
    await Replayer(async_engine, queue, chosen).run(asyncio.Event(), done)
    (message,) = queue.taken
    assert read_delivery_headers(message.headers).handlers == ("billing.CountSale", "billing.Sales")


async def test_a_replay_waits_for_what_is_being_settled(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """It is dated before the replay began, and is committed after it has looked."""
    relay = pg_engine.connect()
    settle = insert(tables.published).values(row(1, NOW) | {"published_at": func.statement_timestamp()})
    relay.execute(settle)
    later = pg_engine.connect()
    looks = 0

    async def commit(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:  # a transaction that began later is not waited for
            later.execute(settle.values(position=2, message_id="two"))
        relay.commit()

    queue, done = Queue(), Replayed()
    await Replayer(async_pg_engine, queue, Kept(), sleep=commit).run(asyncio.Event(), done)
    assert (done.count, done.complete, looks) == (1, True, 1)
    for connection in (relay, later):
        connection.close()


async def test_a_relay_that_does_not_end_is_named(pg_engine: Engine, async_pg_engine: AsyncEngine):
    times = iter([0.0, 0.0, 29.0, 31.0])

    async def sleep(_: float) -> None: ...

    with pg_engine.connect() as relay:
        relay.execute(tables.outbox.select().with_for_update())
        replay = Replayer(async_pg_engine, Queue(), Kept(), monotonic=lambda: next(times), sleep=sleep)
        with pytest.raises(OutboxkitError, match="settling messages for 30 s"):
            await replay.find()
        assert relay.execute(published.settling()).all() == [], "its own transaction is not counted"


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "20000-01-01", "9999-12-31 23:59:59+00", "0001-01-01 BC"])
async def test_an_absurd_moment_hides_no_other_dead_letter(
    pg_engine: Engine, async_pg_engine: AsyncEngine, moment: str
):
    fill(pg_engine, [buried("m"), buried("fine")])
    absurd = (
        "UPDATE outboxkit_dead_letter SET created_at = :at, first_failed_at = :at, dead_at = :at, resolved_at = :at"
    )
    with pg_engine.begin() as connection:
        connection.execute(text(absurd + " WHERE message_id = 'm'"), {"at": moment})
        connection.execute(text(f"ALTER DATABASE {pg_engine.url.database} SET timezone = 'Pacific/Kiritimati'"))
    await async_pg_engine.dispose()
    letters = DeadLetters(async_pg_engine)
    assert len((await letters.find(Selection(), limit=10)).rows) == len(await letters.read(Selection(), limit=10)) == 2
    assert (await replay(async_pg_engine)).complete
    with pg_engine.connect() as connection:
        assert "fine" in connection.execute(select(tables.outbox.c.message_id)).scalars().all()
        connection.execute(select(tables.outbox)).all()
