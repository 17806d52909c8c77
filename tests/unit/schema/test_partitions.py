"""SQLite has no partitions. What happens on PostgreSQL is tested in tests/integration/schema/test_partitions.py."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.schema.partitions import Changed, clock, drop_before, prepare_partitions
from tests.unit.shop import NOW


async def test_on_sqlite_there_is_nothing_to_do(async_engine: AsyncEngine):
    async with async_engine.connect() as connection:
        assert await prepare_partitions(connection, now=NOW) == Changed()
        assert await drop_before(connection, NOW) == Changed()


async def test_the_clock_is_the_databases_and_knows_its_zone(async_engine: AsyncEngine):
    before = datetime.now(UTC)
    async with async_engine.connect() as connection:
        found = await clock(connection)
    assert found.tzinfo is not None
    assert before - timedelta(milliseconds=1) <= found <= datetime.now(UTC)
