"""Plans that PostgreSQL makes once and keeps: they must be right for a full outbox, though made when it was empty."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from outboxkit import process, statements
from outboxkit.driver_rows import fetch

FILL = """
INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type)
SELECT 'm' || n, 'T', '{}', '{}', 'application/json' FROM generate_series(1, 20000) n
"""
TIMES = 12
"""The driver prepares after 5 executions, the server keeps a plan after 5 more."""


@pytest.mark.parametrize("of_a_relay", [True, False], ids=["relay's engine", "plain engine"])
async def test_a_claim_that_was_planned_for_an_empty_outbox(
    pg_engine: Engine, postgresql_url: str, *, of_a_relay: bool
):
    """It goes by the index in a relay's session. In any other it would read all rows and sort them."""
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(FILL))
        connection.execute(text("DELETE FROM outboxkit_outbox"))
        connection.execute(text("VACUUM ANALYZE outboxkit_outbox"))
    made = (
        process.relay_engine(postgresql_url, publish_timeout=timedelta(seconds=10))
        if of_a_relay
        else process.engine(postgresql_url, name="test")
    )
    claim = statements.claim.claim_ready()
    async with made.connect() as connection:
        for _ in range(TIMES):
            assert await fetch(connection, claim, {"destination": "default", "floor": 0, "limit": 500}) == []
        with pg_engine.begin() as other:
            other.execute(text(FILL))
        kept = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%SKIP LOCKED'"
        is_old = (connection.dialect.server_version_info or ()) < (14,)
        if not is_old:  # before 14, there was no such column, and an empty table was taken for one of ten pages
            kept += " AND generic_plans > 0"
        name = (await connection.execute(text(kept))).scalar_one()
        plan = await connection.execute(text(f"EXPLAIN EXECUTE \"{name}\"('default', 0, 500)"))
        lines = "\n".join(plan.scalars())
    await made.dispose()
    assert ("using outboxkit_outbox_ready" in lines) is (of_a_relay or is_old), lines
    assert ("Sort" in lines) is not (of_a_relay or is_old), lines
