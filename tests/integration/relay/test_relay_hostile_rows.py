"""Rows that no `outbox.add` has written: each ends as a dead letter or is published, and others flow."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Table, create_engine, make_url, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from structlog.testing import capture_logs

from outboxkit import tables
from outboxkit.brokers import Verdict
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.relay.notifier import Notifier
from outboxkit.runtime import process
from tests.integration.relay.recording import QUICK, Recorder, add, running
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

DEEP = b'{"deep":' + b'{"d":' * 400 + b"1" + b"}" * 401
BAD: dict[str, dict[str, Any]] = {
    "no JSON": {"headers": b"no JSON"},
    "invalid UTF-8": {"headers": b'{"a":"\xff"}'},
    "a NUL": {"headers": b"\0"},
    "no object": {"headers": b"[1]"},
    "too deep": {"headers": b"[" * 100_000},
    "a long type": {"type": "é" * 250},
    "a long key": {"key": "é" * 250, "headers": b'{"x":' + b'"' + b"y" * 140_000 + b'"}'},
    "a long topic": {"topic": "é" * 250},
    "a long header name": {"headers": json.dumps({"n" * 300: 1}).encode()},
    "a large number": {"headers": b'{"n":' + b"9" * 40 + b"}"},
    "a long queue": {"queue": "é" * 250},
    "a reply queue": {"queue": "amq.rabbitmq.reply-to"},
    "a bad CC": {"headers": b'{"CC":"text"}'},
    "attempts": {"headers": b"?", "attempts": 2**31 - 1},
}
FINE: dict[str, dict[str, Any]] = {
    "nested": {"headers": DEEP},
    "infinity": {"created_at": text("'infinity'")},
    "long ago": {"created_at": text("'-infinity'")},
    "before Christ": {"created_at": text("'0044-03-15 12:00:00+00 BC'"), "due_at": text("'0044-03-15 BC'")},
    "much later": {"created_at": text("'294276-01-01'"), "expires_at": text("'infinity'")},
    "always due": {"due_at": text("'-infinity'")},
    "no payload": {"payload": b""},
    "tampered": {"payload": b"\xff\0\xfe"},
    "odd content type": {"content_type": "\x01" * 255},
    "an odd id": {"message_id": "\u202e\n\x1b[31m"},
}
LATER = {"never": {"due_at": text("'infinity'")}, "in a while": {"due_at": text("'10000-01-01'")}}


def change(engine: Engine, cases: dict[str, dict[str, Any]]) -> dict[str, str]:
    """A row for each of these cases; their ids by name, as they were added."""
    ids = {}
    for number, (name, columns) in enumerate(cases.items()):
        (ids[name],) = add(engine, number, key=f"key of {name}", topic="Ordered")
        with engine.begin() as connection:
            where = tables.outbox.c.message_id == ids[name]
            connection.execute(update(tables.outbox).where(where).values(columns))
    return ids


def seen(engine: Engine, table: Table) -> dict[str, Any]:
    """The rows of a table by their ids, without their moments: this test's own driver cannot read them."""
    with engine.connect() as connection:
        columns = [column for column in table.columns if not isinstance(column.type, tables.UtcDateTime)]
        return {row.message_id: row for row in connection.execute(select(*columns))}


async def test_a_hostile_row_ends_as_a_dead_letter_with_its_reason_and_others_flow(
    pg_engine: Engine, async_pg_engine: AsyncEngine, broker: PlainClient
):
    broker.bind("Ordered")
    bad = change(pg_engine, BAD)
    fine = change(pg_engine, FINE)
    later = change(pg_engine, LATER)
    last = add(pg_engine, 99)
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange, timeout=timedelta(seconds=5))
    policy = RelayPolicy(max_attempts=2, backoffs=dict.fromkeys((Verdict.UNROUTABLE, Verdict.REJECTED), QUICK))
    relay = Relay(async_pg_engine, publisher, policy=policy, poll_interval=timedelta(milliseconds=5))
    with capture_logs() as log:
        async with running(relay):
            left = await eventually_async(
                lambda: asyncio.to_thread(seen, pg_engine, tables.outbox), lambda found: len(found) <= len(later)
            )
    assert set(left) == set(later.values())
    dead = seen(pg_engine, tables.dead_letter)
    assert set(dead) == set(bad.values())
    assert all(row.reason in ("rejected", "unroutable") and row.error for row in dead.values())
    arrived = {received.properties.message_id for received in broker.take_all()}
    expected = {*fine.values(), *last} - {fine["an odd id"]} | {str(FINE["an odd id"]["message_id"])}
    assert arrived == expected
    buried = [entry for entry in log if entry["event"] == "message set aside as a dead letter"]
    assert sum(entry.get("count", 1) for entry in buried) == len(bad)
    assert not [entry for entry in log if entry["event"] == "unexpected error, the relay goes on"]


@pytest.fixture(params=["Europe/Berlin", "America/Los_Angeles"])
def elsewhere(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[Engine]:
    """A database whose sessions are in another time zone."""
    engine = create_engine(postgresql_url)
    name = make_url(postgresql_url).database
    with engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET timezone TO '{request.param}'"))
    engine.dispose()
    yield engine
    engine.dispose()


async def test_moments_at_the_ends_of_time_stop_nothing_wherever_the_server_is(elsewhere: Engine, postgresql_url: str):
    last, first = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    with elsewhere.connect() as connection:
        assert connection.execute(text("SHOW timezone")).scalar_one() in ("Europe/Berlin", "America/Los_Angeles")
    ids = change(
        elsewhere,
        {
            "expires never": {"expires_at": last},
            "made late": {"created_at": last},
            "made early": {"created_at": first, "due_at": first},
            "due at the end": {"due_at": last},
        },
    )
    engine = process.engine(postgresql_url, name="relay elsewhere")
    async with engine.connect() as connection:
        assert (await connection.execute(text("SHOW timezone"))).scalar_one() == "UTC"
        found = await connection.execute(text("SELECT created_at, 'infinity'::timestamptz FROM outboxkit_outbox"))
        assert {row[1] for row in found} == {last}
    recorder = Recorder()
    done = await Relay(engine, recorder).drain(asyncio.Event())
    assert (done.published, done.later, done.failed) == (3, 1, {})
    assert set(recorder.arrived) == set(ids.values()) - {ids["due at the end"]}
    stop = asyncio.Event()
    notifier = Notifier(engine, poll_interval=timedelta(milliseconds=5), fallback_poll=timedelta(milliseconds=5))
    asyncio.get_running_loop().call_later(0.2, stop.set)
    await notifier.wait(stop)
    await notifier.close()
    await engine.dispose()


async def test_a_relay_on_an_engine_of_ones_own_reads_every_moment_too(elsewhere: Engine, postgresql_url: str):
    change(elsewhere, {"late": {"created_at": text("'infinity'"), "expires_at": text("'294276-12-31'")}})
    own = create_async_engine(postgresql_url)
    assert (await Relay(own, Recorder()).drain(asyncio.Event())).published == 1
    await own.dispose()


@pytest.mark.parametrize("stored", ["'nodate'", "''", "'29.11.2026'", "1733011200", "17.5", "x'ff00'"])
async def test_what_sqlite_stores_as_a_moment_and_is_none_keeps_no_row_back(sqlite_url: str, stored: str):
    engine, own = create_engine(sqlite_url), process.engine(sqlite_url, name="test")
    moments = {"created_at": text(stored), "expires_at": text(stored), "due_at": text("'2026-13-45'")}
    change(engine, {name: {name: moment} for name, moment in moments.items()})
    fine = add(engine, 99)
    recorder = Recorder()
    await Relay(own, recorder).drain(asyncio.Event())
    assert set(fine) <= set(recorder.arrived)
    with engine.connect() as connection:
        assert all(row.created_at.tzinfo is UTC for row in connection.execute(select(tables.outbox)))
        assert all(row.created_at.tzinfo is UTC for row in connection.execute(select(tables.dead_letter)))
    await own.dispose()
    engine.dispose()
