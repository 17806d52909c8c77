"""Plans that rest on old statistics: they must be right for a full outbox, though ANALYZE ran when it was empty."""

from datetime import timedelta

from sqlalchemy import Engine, text

from outboxkit import statements
from outboxkit.database.driver_rows import fetch
from outboxkit.runtime import process

FILL = """
INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type)
SELECT 'm' || n, 'T', '{}', '{}', 'application/json' FROM generate_series(1, 20000) n
"""
TIMES = 12
"""The driver prepares after 5 executions, the server keeps a plan after 5 more."""


async def test_a_claim_after_statistics_of_an_empty_outbox(pg_engine: Engine, postgresql_url: str):
    """It goes by the index in a relay's session, and no plan is kept."""
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(FILL))
        connection.execute(text("DELETE FROM outboxkit_outbox"))
        connection.execute(text("VACUUM ANALYZE outboxkit_outbox"))
    engine = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=10))
    claim, parameters = (
        statements.claim.claim_ready(),
        {"destination": "default", "floor": 0, "limit": 500, "payload_limit": 1000},
    )
    async with engine.connect() as connection:
        for _ in range(TIMES):
            assert await fetch(connection, claim, parameters) == []
        with pg_engine.begin() as other:
            other.execute(text(FILL))
        kept = await connection.execute(text("SELECT count(*) FROM pg_prepared_statements"))
        assert kept.scalar_one() == 0
        query = claim.compile(dialect=connection.dialect)
        plan = await connection.exec_driver_sql(f"EXPLAIN {query}", parameters)
        lines = "\n".join(plan.scalars())
    await engine.dispose()
    assert "using outboxkit_outbox_ready" in lines, lines
    assert "Sort" not in lines, lines


async def test_the_question_for_predecessors_without_statistics(pg_engine: Engine, postgresql_url: str):
    """Own positions are searched by hash, and nothing is compiled."""
    with pg_engine.begin() as connection:
        connection.execute(
            text(FILL.replace("'m' || n,", "'m' || n, 'k' || n,", 1).replace("message_id,", "message_id, key,"))
        )
    engine = process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=10))
    numbers = list(range(1, 4001))
    keys, own = [f"k{number}" for number in numbers], numbers
    parameters = {"destination": "default", "floor": 0, "keys": keys, "last_positions": numbers, "own_positions": own}
    async with engine.connect() as connection:
        query = statements.claim.predecessors("postgresql").compile(dialect=connection.dialect)
        plan = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, TIMING OFF) {query}", parameters)
        lines = "\n".join(plan.scalars())
    await engine.dispose()
    assert "NOT (hashed SubPlan" in lines, lines
    assert "JIT" not in lines, lines
