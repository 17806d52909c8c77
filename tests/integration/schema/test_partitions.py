"""Partitions of kept messages on PostgreSQL: a day each, made ahead and dropped whole, beside running relays."""

import asyncio
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, insert, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from structlog.testing import capture_logs

from outboxkit import tables
from outboxkit.runtime import process
from outboxkit.schema import partitions
from outboxkit.schema.partitions import drop_before, make_ahead, prepare_partitions
from tests.integration.operators.kept import DAY, DAYS, NOW, days, keep, places, row
from tests.processes import COMMAND, run_to_end
from tests.support.pages import libpq


@pytest.fixture
async def connection(async_pg_engine: AsyncEngine) -> Any:
    async with async_pg_engine.connect() as opened:
        yield opened


async def test_a_week_is_made_ahead_once(connection: AsyncConnection, pg_engine: Engine):
    assert (await make_ahead(connection, now=NOW)).days == DAYS
    assert (await make_ahead(connection, now=NOW)).days == []
    assert (await make_ahead(connection, now=NOW + DAY)).days == [DAYS[-1] + DAY]
    assert days(pg_engine) == [*DAYS, DAYS[-1] + DAY]


async def test_the_databases_clock_says_which_day_it_is(connection: AsyncConnection, pg_engine: Engine):
    await make_ahead(connection)
    with pg_engine.connect() as other:
        today = other.execute(text("SELECT (now() AT TIME ZONE 'UTC')::date")).scalar_one()
    assert days(pg_engine)[0] in (today, today - DAY)  # a midnight may lie between the two


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
async def test_days_are_days_of_utc(postgresql_url: str, pg_engine: Engine, zone: str):
    url = make_url(postgresql_url).update_query_dict({"options": f"-cTimeZone={zone}"})
    elsewhere = process.engine(url.render_as_string(hide_password=False), name="test")
    async with elsewhere.connect() as connection:
        await make_ahead(connection, now=NOW)
    await elsewhere.dispose()
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    keep(pg_engine, row(1, midnight - timedelta(microseconds=1)), row(2, midnight))
    assert places(pg_engine) == {1: "outboxkit_published_20260301", 2: "outboxkit_published_20260302"}


async def test_rows_of_the_default_partition_move_to_their_day(connection: AsyncConnection, pg_engine: Engine):
    keep(pg_engine, row(1, NOW - DAY), row(2, NOW), row(3, NOW + 3 * DAY), row(4, NOW + 8 * DAY))
    await make_ahead(connection, now=NOW)
    assert places(pg_engine) == {
        1: "outboxkit_published_default",
        2: "outboxkit_published_20260301",
        3: "outboxkit_published_20260304",
        4: "outboxkit_published_default",
    }


async def test_many_processes_may_make_them_at_once(async_pg_engine: AsyncEngine, pg_engine: Engine):
    async def one() -> partitions.Changed:
        async with async_pg_engine.connect() as connection:
            return await make_ahead(connection, now=NOW)

    made = await asyncio.gather(*(one() for _ in range(8)))
    assert days(pg_engine) == DAYS
    assert sorted(day for changed in made for day in changed.days) == DAYS, "each day was made by one of them"
    assert all(changed.problem is None or changed.busy for changed in made)


async def test_inserts_go_on_while_their_day_is_made(connection: AsyncConnection, pg_engine: Engine):
    """A relay that has found the default partition already would be refused there once the day has its own."""
    stop, inserted = threading.Event(), [0]

    def settle(first: int) -> int:
        with pg_engine.connect() as other:
            for position in range(first, 1_000_000, 4):
                other.execute(insert(tables.published), [row(position, NOW)])
                other.commit()
                inserted[0] += 1
                if stop.is_set():
                    return position // 4 + 1
        raise AssertionError("it never ended")

    relays = [asyncio.ensure_future(asyncio.to_thread(settle, first)) for first in range(4)]
    try:
        for number in range(1, 20):
            while inserted[0] < number * 20:
                assert not any(relay.done() for relay in relays), [
                    relay.exception() for relay in relays if relay.done()
                ]
                await asyncio.sleep(0.001)
            assert (await make_ahead(connection, now=NOW)).problem is None
            with pg_engine.begin() as other:
                other.execute(text("ALTER TABLE outboxkit_published DETACH PARTITION outboxkit_published_20260301"))
                other.execute(
                    text(
                        "WITH gone AS (DELETE FROM outboxkit_published_20260301 RETURNING *) "
                        "INSERT INTO outboxkit_published SELECT * FROM gone"
                    )
                )
                other.execute(text("DROP TABLE outboxkit_published_20260301"))
    finally:
        stop.set()
        await asyncio.wait(relays)
    assert len(places(pg_engine)) == inserted[0]


async def test_a_lock_that_somebody_holds_is_not_waited_for(connection: AsyncConnection, pg_engine: Engine):
    await make_ahead(connection, now=NOW)
    with pg_engine.connect() as reader:
        reader.execute(select(tables.published.c.position))
        made = await make_ahead(connection, now=NOW + DAY)
        dropped = await drop_before(connection, NOW + 3 * DAY)
    for changed in (made, dropped):
        assert changed.days == []
        assert changed.busy
        assert "lock timeout" in str(changed.problem)
    assert days(pg_engine) == DAYS
    assert (await make_ahead(connection, now=NOW + DAY)).problem is None
    assert (await drop_before(connection, NOW + 3 * DAY)).days == DAYS[:3]


@pytest.mark.parametrize(
    ("before", "dropped"),
    [
        (NOW, 0),
        (datetime(2026, 3, 2, tzinfo=UTC) - timedelta(microseconds=1), 0),
        (datetime(2026, 3, 2, tzinfo=UTC), 1),
    ],
)
async def test_a_day_is_dropped_when_all_of_it_is_old(
    connection: AsyncConnection, pg_engine: Engine, before: datetime, dropped: int
):
    await make_ahead(connection, now=NOW)
    assert (await drop_before(connection, before)).days == DAYS[:dropped]
    assert days(pg_engine) == DAYS[dropped:]


async def test_partitions_of_somebody_elses_are_never_dropped(connection: AsyncConnection, pg_engine: Engine):
    with pg_engine.begin() as other:
        for name, begin, end in (
            ("old_months", "2020-01-01", "2020-06-01"),
            ("outboxkit_published_20209999", "2020-06-01", "2021-01-01"),
        ):
            other.execute(
                text(f"CREATE TABLE {name} PARTITION OF outboxkit_published FOR VALUES FROM ('{begin}') TO ('{end}')")
            )
    keep(pg_engine, row(1, datetime(2020, 2, 1, tzinfo=UTC)), row(2, datetime(2020, 7, 1, tzinfo=UTC)))
    assert (await drop_before(connection, NOW)).days == []
    assert places(pg_engine) == {1: "old_months", 2: "outboxkit_published_20209999"}


async def test_a_range_that_is_taken_is_one_warning(connection: AsyncConnection, pg_engine: Engine):
    with pg_engine.begin() as other:
        other.execute(
            text("CREATE TABLE m PARTITION OF outboxkit_published FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
        )
    with capture_logs() as said:
        changed = await prepare_partitions(connection, now=NOW)
    assert [(line["log_level"], line["event"]) for line in said] == [
        ("warning", "partition not made, rows go to the default one")
    ]
    assert "would overlap" in said[0]["problem"]
    assert not changed.busy


async def test_the_partitions_are_where_their_table_is(empty_postgresql_url: str):
    admin = create_engine(empty_postgresql_url)
    with admin.begin() as connection:
        connection.execute(text('CREATE SCHEMA "My %s:Schema"; CREATE SCHEMA application'))
    path = 'application,"My\\ %s:Schema"'
    url = make_url(empty_postgresql_url)
    only = url.set(query={"options": '-csearch_path="My\\ %s:Schema"'}).render_as_string(hide_password=False)
    migrated = run_to_end([COMMAND, "migrate", "--database-url", only], {})
    assert migrated.returncode == 0, migrated.stderr
    engine = process.engine(
        url.set(query={"options": f"-csearch_path={path}"}).render_as_string(hide_password=False), name="test"
    )
    async with engine.connect() as connection:
        made = await make_ahead(connection, now=NOW)
        dropped = await drop_before(connection, NOW + 3 * DAY)
    await engine.dispose()
    with admin.connect() as connection:
        found = connection.execute(text("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename ~ '_published_2'"))
        assert list(found.scalars()) == ["My %s:Schema"]
    admin.dispose()
    assert (made.days, dropped.days) == (DAYS, DAYS[:3])


@pytest.fixture
def stranger(postgresql_url: str) -> Iterator[str]:
    """The URL of a role that may insert, and owns nothing."""
    role = f"stranger_{postgresql_url.rpartition('_')[2]}"
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}; GRANT SELECT, INSERT ON outboxkit_published TO {role}")
        yield f"{postgresql_url}?options=-crole%3D{role}"
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_role_that_may_not_make_them_is_told_once(stranger: str, pg_engine: Engine):
    engine = process.engine(stranger, name="test")
    async with engine.connect() as connection:
        with capture_logs() as said:
            changed = await prepare_partitions(connection, now=NOW)
        await connection.execute(insert(tables.published), [row(1, NOW)])
        await connection.commit()
    await engine.dispose()
    assert [line["event"] for line in said] == ["partition not made, rows go to the default one"]
    assert re.search(
        "permission denied|must be member of role", str(changed.problem)
    )  # the latter before PostgreSQL 15
    assert places(pg_engine) == {1: "outboxkit_published_default"}


async def test_whoever_makes_a_partition_it_belongs_to_the_tables_owner(
    stranger: str, connection: AsyncConnection, pg_engine: Engine
):
    owner = stranger.rpartition("%3D")[2]
    with pg_engine.begin() as admin:
        admin.execute(text(f"GRANT CREATE ON SCHEMA public TO {owner}"))
        admin.execute(text(f"ALTER TABLE outboxkit_published OWNER TO {owner}"))
        admin.execute(text(f"ALTER TABLE outboxkit_published_default OWNER TO {owner}"))
    assert (await make_ahead(connection, now=NOW)).days == DAYS
    engine = process.engine(stranger, name="test")
    async with engine.connect() as of_owner:
        assert (await drop_before(of_owner, NOW + 2 * DAY)).days == DAYS[:2]
        assert (await make_ahead(of_owner, now=NOW + DAY)).days == [DAYS[1], DAYS[-1] + DAY]
    await engine.dispose()


async def test_an_outage_is_an_error(async_pg_engine: AsyncEngine, pg_engine: Engine):
    async with async_pg_engine.connect() as connection:
        await connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
        await connection.commit()
        with pytest.raises(DBAPIError, match="read-only"):
            await make_ahead(connection, now=NOW)
