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
from outboxkit.operators.deadletters import DeadLetters, Resolved, Selection
from outboxkit.operators.replay import Replayed, Replayer
from outboxkit.operators.replay import ReplaySelection as Kept
from outboxkit.statements import published
from tests.support.ledger_requests import waiting
from tests.support.polling import eventually_async
from tests.unit.operators.test_replay import Queue

ENVELOPE = {"type": "Ordered", "payload": b'{"number":1}', "headers": b"{}", "content_type": "application/json"}


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
    letter: dict[str, Any] = {"side": "inbox", "queue": "billing", "reason": "rejected", "attempts": 3} | ENVELOPE
    rows = [
        letter | {"handler": handler, "message_id": id_}
        for id_, handler in [
            ("two", "billing.IssueInvoice"),
            ("one", "billing.IssueInvoice"),
            ("one", None),
            (None, "billing.IssueInvoice"),
        ]
    ]
    rows += [letter | {"side": "outbox", "handler": None, "message_id": "sent", "queue": None, "position": 1}]
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(tables.dead_letter).values(row))
    assert handled(engine, issue, "two") is Outcome.PROCESSED  # a redelivery was faster
    done = Resolved()
    await DeadLetters(async_engine).resolve("discarded", Selection(), asyncio.Event(), done)
    assert done.count == len(rows)
    assert handled(engine, issue, "one") is Outcome.DUPLICATE
    assert handled(engine, count, "one") is Outcome.PROCESSED, "the other handler of the message is not concerned"


async def test_it_is_remembered_for_as_long_as_a_handled_one(engine: Engine, async_engine: AsyncEngine):
    ahead = datetime.now(UTC) + timedelta(hours=1)  # by the clock of its producer
    letter = {"side": "inbox", "queue": "billing", "reason": "rejected", "attempts": 3, "created_at": ahead}
    with engine.begin() as connection:
        row = letter | ENVELOPE | {"handler": "billing.IssueInvoice", "message_id": "one"}
        connection.execute(insert(tables.dead_letter).values(row))
    await DeadLetters(async_engine).resolve("discarded", Selection(), asyncio.Event(), Resolved())
    with engine.connect() as connection:
        assert connection.execute(select(tables.inbox.c.processed_at)).scalar_one() == ahead


async def test_a_discard_that_waits_for_a_consumer_holds_no_message_behind_its_own(
    pg_engine: Engine, async_pg_engine: AsyncEngine
):
    letter = {"side": "inbox", "queue": "billing", "reason": "rejected", "attempts": 3, "handler": "H"} | ENVELOPE
    handled_now = {"handler": "H", "type": "Ordered"}
    with pg_engine.begin() as connection:
        connection.execute(insert(tables.dead_letter), [letter | {"message_id": each} for each in ("b", "a")])
    with pg_engine.connect() as consumer:
        consumer.execute(insert(tables.inbox).values(message_id="a", **handled_now))
        discard = DeadLetters(async_pg_engine).resolve("discarded", Selection(), asyncio.Event(), done := Resolved())
        discarding = asyncio.create_task(discard)
        await eventually_async(lambda: asyncio.to_thread(waiting, pg_engine))
        consumer.execute(text("SET LOCAL lock_timeout = '10s'"))
        consumer.execute(insert(tables.inbox).values(message_id="b", **handled_now))
        consumer.commit()
    await discarding
    assert done.count == 2


async def test_a_replay_can_be_for_some_handlers(engine: Engine, async_engine: AsyncEngine):
    with engine.begin() as connection:
        kept = {"published_at": datetime(2026, 3, 1, tzinfo=UTC), "position": 1, "message_id": "one"}
        connection.execute(insert(tables.published).values(kept | ENVELOPE))
    queue, done = Queue(), Replayed()
    chosen = Kept(handlers=("billing.CountSale", "billing.Sales"))
    await Replayer(async_engine, queue, chosen).run(asyncio.Event(), done)
    (message,) = queue.taken
    assert read_delivery_headers(message.headers).handlers == ("billing.CountSale", "billing.Sales")


async def test_a_replay_waits_for_what_is_being_settled(pg_engine: Engine, async_pg_engine: AsyncEngine):
    """It is dated before the replay began, and is committed after it has looked."""
    relay = pg_engine.connect()
    row = ENVELOPE | {"message_id": "one", "position": 1}
    keep = insert(tables.published).values(row | {"published_at": func.statement_timestamp()})
    relay.execute(keep)
    later = pg_engine.connect()
    looks = 0

    async def commit(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:  # a transaction that began later is not waited for
            later.execute(keep.values(position=2, message_id="two"))
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
    letter = {"side": "inbox", "queue": "q", "message_id": "m", "reason": "failed", "attempts": 3} | ENVELOPE
    with pg_engine.begin() as connection:
        connection.execute(insert(tables.dead_letter), [letter, letter | {"message_id": "fine"}])
        absurd = (
            "UPDATE outboxkit_dead_letter SET created_at = :at, first_failed_at = :at, dead_at = :at, resolved_at = :at"
        )
        connection.execute(text(absurd + " WHERE message_id = 'm'"), {"at": moment})
        connection.execute(text(f"ALTER DATABASE {pg_engine.url.database} SET timezone = 'Pacific/Kiritimati'"))
    await async_pg_engine.dispose()
    letters = DeadLetters(async_pg_engine)
    assert len((await letters.find(Selection(), limit=10)).rows) == len(await letters.read(Selection(), limit=10)) == 2
    done = Resolved()
    await letters.resolve("replayed", Selection(), asyncio.Event(), done)
    assert done.complete
    with pg_engine.connect() as connection:
        assert "fine" in connection.execute(select(tables.outbox.c.message_id)).scalars().all()
        connection.execute(select(tables.outbox)).all()
