"""Outages that need no process of their own: errors are the same on both ways to the driver, and a frozen relay."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from structlog.testing import capture_logs

from outboxkit import Message, statements
from outboxkit.brokers import Receipt
from outboxkit.database.driver_rows import fetch, pages
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.runtime import process
from outboxkit.runtime.outage import what_is_away
from tests.integration.relay.recording import Recorder, add, count, relay, rows, running
from tests.support.polling import eventually_async

CLAIM = statements.claim.claim_ready()
EVERYTHING = {"destination": "default", "floor": 0, "limit": 10, "payload_limit": 1000}

Way = Callable[[AsyncConnection], Awaitable[Any]]


async def by_sqlalchemy(connection: AsyncConnection) -> Any:
    return await connection.execute(CLAIM, EVERYTHING)


async def by_driver(connection: AsyncConnection) -> Any:
    return await fetch(connection, CLAIM, EVERYTHING)


async def by_cursor(connection: AsyncConnection) -> Any:
    return [row async for page in pages(connection, CLAIM, EVERYTHING, name="claim", size=2) for row in page]


SETTINGS = {
    "read_only": "SET transaction_read_only = on",
    "lock_timeout": "SET lock_timeout = '50ms'",
    "idle": "SET idle_in_transaction_session_timeout = '50ms'",
}
WAYS: dict[str, Way] = {"SQLAlchemy": by_sqlalchemy, "driver": by_driver, "cursor": by_cursor}


def do_to(admin: Engine, function: str, pid: int) -> None:
    """Have PostgreSQL do this to a backend."""
    with admin.begin() as connection:
        connection.execute(text(f"SELECT {function}(:pid)"), {"pid": pid})


def wait_events(admin: Engine, pid: int) -> list[str | None]:
    """What a backend waits for; nothing at all where it has ended."""
    asked = text("SELECT wait_event_type FROM pg_stat_activity WHERE pid = :pid")
    with admin.connect() as connection:
        return list(connection.execute(asked, {"pid": pid}).scalars())


async def interrupted(admin: Engine, engine: AsyncEngine, way: Way, trouble: str) -> DBAPIError:
    """What a claim raises in this trouble."""
    async with engine.connect() as connection:
        pid = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        events = partial(asyncio.to_thread, wait_events, admin, pid)
        if trouble in SETTINGS:
            await connection.execute(text(SETTINGS[trouble]))
        if trouble == "idle":
            await eventually_async(events, lambda found: found == [])
        if trouble == "terminated":
            await asyncio.to_thread(do_to, admin, "pg_terminate_backend", pid)
        with admin.begin() as other:
            if trouble in ("lock_timeout", "cancelled"):
                other.execute(text("LOCK TABLE outboxkit_outbox IN EXCLUSIVE MODE"))
            claiming = asyncio.ensure_future(way(connection))
            if trouble == "cancelled":
                await eventually_async(events, lambda found: found == ["Lock"])
                await asyncio.to_thread(do_to, admin, "pg_cancel_backend", pid)
            with pytest.raises(DBAPIError) as raised:
                await claiming
    return raised.value


@pytest.mark.parametrize(
    ("trouble", "sqlstate"),
    [("read_only", "25006"), ("lock_timeout", "55P03"), ("cancelled", "57014"), ("terminated", "57P01"),
     ("idle", "25P03")],
)  # fmt: skip
async def test_an_error_is_the_same_whether_sqlalchemy_or_the_driver_was_asked(
    pg_engine: Engine, async_pg_engine: AsyncEngine, trouble: str, sqlstate: str
):
    add(pg_engine, 1)
    errors = {name: await interrupted(pg_engine, async_pg_engine, way, trouble) for name, way in WAYS.items()}
    theirs = errors.pop("SQLAlchemy")
    assert getattr(theirs.orig, "sqlstate", None) == sqlstate
    for ours in errors.values():
        assert getattr(ours.orig, "sqlstate", None) == sqlstate
        assert type(ours) is type(theirs)
        assert ours.connection_invalidated is theirs.connection_invalidated is (trouble in ("terminated", "idle"))
        assert what_is_away(ours, passing=TRANSIENT) == what_is_away(theirs, passing=TRANSIENT)
        assert what_is_away(ours, passing=TRANSIENT) == "database"
    assert async_pg_engine.pool.checkedout() == 0
    async with async_pg_engine.connect() as connection:
        assert len(await fetch(connection, CLAIM, EVERYTHING)) == 1


class Freezing(Recorder):
    """Stands still in the middle of its first batch until it is thawed."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.thaw = asyncio.Event(), asyncio.Event()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        receipts = await super().publish(batch)
        self.frozen.set()
        await self.thaw.wait()
        return receipts


async def test_a_relay_that_froze_notices_that_its_rows_were_taken_back_and_goes_on(
    pg_engine: Engine, postgresql_url: str
):
    ids = add(pg_engine, 1, 2, key="k")
    limited = process.engine(postgresql_url, name="frozen", idle_in_transaction=timedelta(seconds=1))
    freezing = Freezing()
    with capture_logs() as said:
        async with running(relay(limited, freezing)):
            await freezing.frozen.wait()
            await eventually_async(partial(asyncio.to_thread, lockable, pg_engine), lambda found: found == 2)
            assert [(row.attempts, row.last_error) for row in rows(pg_engine)] == [(0, None)] * 2
            freezing.thaw.set()
            await eventually_async(partial(asyncio.to_thread, count, pg_engine), lambda left: left == 0)
    told = [line for line in said if line["log_level"] == "warning" and "database" in line["event"]]
    assert [(line["event"], line["error"]) for line in told] == [
        (
            "database is away, waiting",
            "IdleInTransactionSessionTimeout: terminating connection due to idle-in-transaction timeout",
        )
    ]
    assert freezing.arrived == ids * 2
    await limited.dispose()


def lockable(engine: Engine) -> int:
    """How many rows nobody holds."""
    with engine.connect() as connection:
        asked = text("SELECT count(*) FROM (SELECT 1 FROM outboxkit_outbox FOR UPDATE SKIP LOCKED) AS free")
        return int(connection.execute(asked).scalar_one())


async def test_connections_notice_a_server_that_fell_silent_in_half_a_minute_unless_the_url_says_otherwise(
    postgresql_url: str,
):
    for query, expected in (("", process.SILENCE), ("?keepalives_idle=99", process.SILENCE | {"keepalives_idle": 99})):
        made = process.engine(postgresql_url + query, name="test")
        async with made.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            chosen = driver.info.get_parameters()
        assert {name: int(chosen.get(name, 0)) for name in expected} == expected
        await made.dispose()
