"""Rows as the relay reads them: every column reaches its field."""

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from outboxkit import statements, tables
from outboxkit.database.driver_rows import fetch
from outboxkit.relay.order import read_claimed
from tests.unit.relay.conftest import SECOND, Bench
from tests.unit.shop import NOW, message

NOTHING_KNOWN = {"destination": "default", "floor": 0, "limit": 10, "payload_limit": 1000}


async def test_a_claimed_row_is_the_message_that_was_added(bench: Bench):
    full = message(
        id="full",
        key="k",
        topic="t",
        headers={"h": 1, "flag": None},
        correlation_id="c",
        causation_id="d",
        content_encoding="gzip",
        content_type="text/plain",
    )
    bench.add_messages(full, message(id="bare"))
    columns = {"reply": "Replied", "attempts": 3, "expires_at": NOW + SECOND, "discard_unroutable": True}
    with bench.engine.begin() as connection:
        connection.execute(tables.outbox.update().where(tables.outbox.c.message_id == "full").values(columns))
    async with bench.async_engine.connect() as connection:
        found = read_claimed(await fetch(connection, statements.claim.claim_ready(), NOTHING_KNOWN))
    assert [row.message for row in found] == [full, message(id="bare")]
    assert [(row.position, row.attempts, row.discard_unroutable) for row in found] == [(1, 3, True), (2, 0, False)]
    assert [row.reply for row in found] == ["Replied", None]
    assert [(row.expires_at, row.due_at) for row in found] == [(NOW + SECOND, None), (None, None)]


async def test_a_due_row_says_since_when(bench: Bench):
    bench.add("a", deliver_at=NOW - SECOND)
    async with bench.async_engine.connect() as connection:
        (found,) = read_claimed(
            await fetch(
                connection,
                statements.claim.claim_due(),
                {"destination": "default", "now": NOW, "limit": 10, "payload_limit": 1000},
            )
        )
    assert found.due_at == NOW - SECOND
    assert found.due_at.utcoffset() == timedelta(0)


async def test_an_error_is_sqlalchemys(bench: Bench):
    async with bench.async_engine.connect() as connection:
        await connection.execute(text("DROP TABLE outboxkit_outbox"))
        with pytest.raises(OperationalError, match="no such table"):
            await fetch(connection, statements.claim.claim_ready(), NOTHING_KNOWN)
