"""Sessions of outboxkit's own in a database whose defaults are not PostgreSQL's."""

from datetime import timedelta

from sqlalchemy import Engine, make_url, text

from outboxkit.runtime import process


async def test_a_relay_reads_committed_rows_and_writes_utf_8_whatever_the_database_has_set(
    postgresql_url: str, pg_engine: Engine
):
    name = make_url(postgresql_url).database
    with pg_engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
        connection.execute(text(f"ALTER DATABASE {name} SET client_encoding = 'latin1'"))
    engine = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=10))
    async with engine.connect() as connection:
        assert (await connection.execute(text("SHOW transaction_isolation"))).scalar_one() == "read committed"
        assert (await connection.execute(text("SELECT 'ключ'"))).scalar_one() == "ключ"
    await engine.dispose()


async def test_a_relay_that_freezes_loses_its_rows_and_one_that_waits_for_a_lock_gives_up(
    postgresql_url: str,
):
    engine = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=2))
    async with engine.connect() as connection:
        limits = [
            (await connection.execute(text(f"SHOW {name}"))).scalar_one()
            for name in ("idle_in_transaction_session_timeout", "lock_timeout")
        ]
    assert limits == ["11s", process.LOCK_TIMEOUT]
    await engine.dispose()
