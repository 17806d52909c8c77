"""Relays of several destinations on PostgreSQL: each has its own rows, and what one is answered reaches the other."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import Message, ids, statements, tables
from outboxkit.brokers import Answer, Receipt, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.relay import Drained, Relay, RelayPolicy
from outboxkit.runtime import process
from tests.integration.relay.recording import NOW, Recorder, add, fill, rows, running
from tests.integration.schema.test_plans import run, walk
from tests.support.polling import eventually_async

HOUR = timedelta(hours=1)
PAYMENTS = {"destination": "payments"}


class Answering(Recorder):
    """Says something to every message, and can lose its process's memory right after."""

    def __init__(self, said: bytes = b'{"ok":true}') -> None:
        super().__init__()
        self.said = said

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        await super().publish(batch)
        return [Receipt(Verdict.CONFIRMED, answer=Answer(self.said, "text/" + "x" * 300)) for _ in batch]


def charges(engine: Engine, count: int, **columns: Any) -> list[str]:
    """Messages for `payments`; `columns` are set in their rows."""
    added = add(engine, *range(count), destination="payments", key="k")
    if columns:
        with engine.begin() as connection:
            connection.execute(update(tables.outbox).where(tables.outbox.c.message_id.in_(added)).values(columns))
    return added


async def drained(engine: AsyncEngine, publisher: Any, **more: Any) -> Drained:
    async with asyncio.timeout(60):
        return await Relay(engine, publisher, **more).drain(asyncio.Event())


async def test_a_relay_drains_and_counts_its_own_destination(pg_engine: Engine, async_pg_engine: AsyncEngine):
    ours, theirs = add(pg_engine, 1, 2, key="k"), charges(pg_engine, 3)
    add(pg_engine, 9, destination="payments", deliver_at=NOW + HOUR)
    for destination, expected, later in (("payments", theirs, 1), ("default", ours, 0), ("elsewhere", [], 0)):
        recorder = Recorder()
        done = await drained(async_pg_engine, recorder, destination=destination)
        assert recorder.arrived == expected
        assert (done.blocked, done.later, done.is_complete) == (0, later, True)


async def test_a_key_waits_for_nothing_in_another_destination(pg_engine: Engine, async_pg_engine: AsyncEngine):
    charges(pg_engine, 2)
    (first,) = add(pg_engine, 7, key="k")
    refusing = Recorder(lambda message: Verdict.REJECTED)
    await drained(async_pg_engine, refusing, destination="payments", policy=RelayPolicy(max_attempts=1))
    assert [(row.key, row.destination, row.parked) for row in rows(pg_engine, tables.dead_letter)] == [
        ("k", "payments", True)
    ]
    (second,) = add(pg_engine, 8, key="k")
    recorder = Recorder()
    await drained(async_pg_engine, recorder)
    assert recorder.arrived == [first, second]
    charges(pg_engine, 1)
    await drained(async_pg_engine, recorder, destination="payments")
    assert len(recorder.arrived) == 2, "there it is parked"


async def test_a_backlog_of_another_destination_is_not_walked_over(pg_engine: Engine):
    """Also where the rows have one key, and half of them wait."""
    fill(pg_engine, 50_000, keys=1)
    half = "UPDATE outboxkit_outbox SET due_at = now() - interval '1 hour', held = true WHERE position % 2 = 0"
    with pg_engine.begin() as connection:
        connection.execute(text("UPDATE outboxkit_outbox SET destination = 'payments'"))
        connection.execute(text(half))
    fill(pg_engine, 50_100, first=50_001, keys=1)
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE outboxkit_outbox"))
    ours: dict[str, Any] = {
        "destination": "default",
        "floor": 0,
        "limit": 500,
        "payload_limit": 1000,
        "now": NOW + HOUR,
    }
    before = {"keys": ["k0"], "last_positions": [10**6], "own_positions": [0]}
    for statement in (
        statements.claim.claim_ready(),
        statements.claim.claim_due(),
        statements.claim.oldest_ready(),
        statements.claim.predecessors("postgresql"),
        statements.notifier.something_to_do(),
        statements.claim.count_due(NOW),
        statements.claim.count_later(NOW),
    ):
        found = run(pg_engine, statement, ours | before)
        scans = [node for node in walk(found) if "Relation Name" in node]
        assert scans
        for scan in scans:
            assert (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] <= 100
        assert found["Shared Hit Blocks"] + found["Shared Read Blocks"] < 400


async def test_an_answer_is_a_message_that_wakes_the_other_relay(pg_engine: Engine, async_pg_engine: AsyncEngine):
    broker = MemoryBroker()
    subscriber = MemorySubscriber(broker, "q", ["CardCharged"])
    idle = Relay(async_pg_engine, MemoryPublisher(broker), poll_interval=HOUR)
    idle._notifier._fallback_seconds = HOUR.total_seconds()
    async with running(idle):
        listeners = "SELECT count(*) FROM outboxkit_listener"
        await eventually_async(lambda: asyncio.to_thread(asked, pg_engine, listeners))
        (sent,) = charges(pg_engine, 1, reply="CardCharged", correlation_id="c")
        await drained(async_pg_engine, Answering(), destination="payments")
        async with asyncio.timeout(60):
            arrived = (await subscriber.receive()).message
    assert isinstance(arrived, Message)
    assert (arrived.id, arrived.type, arrived.payload) == (ids.derive("reply", sent), "CardCharged", b'{"ok":true}')
    assert (arrived.key, arrived.correlation_id, arrived.causation_id) == ("k", "c", sent)
    assert rows(pg_engine) == []


async def test_a_crash_before_the_settlement_repeats_the_call_and_leaves_one_reply(
    pg_engine: Engine, postgresql_url: str
):
    """The server ends the relay's sessions while it publishes: as for a process that is gone."""
    (sent,) = charges(pg_engine, 1, reply="CardCharged")

    class Cut(Answering):
        async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
            receipts = await super().publish(batch)
            if len(self.arrived) == 1:
                await asyncio.to_thread(asked, pg_engine, CUT)
            return receipts

    engine = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=10))
    publisher = Cut()
    await drained(engine, publisher, **PAYMENTS)
    await engine.dispose()
    assert publisher.arrived == [sent, sent]
    assert [(row.message_id, row.destination, row.reply) for row in rows(pg_engine)] == [
        (ids.derive("reply", sent), "default", None)
    ]


CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'outboxkit relay' AND datname = current_database()"  # noqa: E501


def asked(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar()
