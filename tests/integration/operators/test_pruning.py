"""`outboxkit prune` on PostgreSQL: one at a time, days of the inbox dropped, expired keys forgotten."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ids, metadata, statements
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.statements.partitions import INBOX
from tests.integration.operators.kept import DAY, NOW, days
from tests.integration.operators.plans import explain, indexes_in
from tests.processes import COMMAND, run_to_end
from tests.unit.cli.conftest import Run

FILL = """
INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at)
SELECT 'H', 'order-' || n, 'T', now() - n % 2 * interval '30 days' FROM generate_series(1, :rows) n
"""


def remembered(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one())


def test_tenants_with_a_schema_each_prune_at_the_same_time(empty_postgresql_url: str):
    engines = [
        create_engine(f"{empty_postgresql_url}?options=-csearch_path%3D{name}") for name in ("one", "two", "one")
    ]
    connections = [engine.connect() for engine in engines]
    for connection, schema in zip(connections[:2], ("one", "two"), strict=True):
        connection.execute(text(f"CREATE SCHEMA {schema}"))
        metadata.create_all(connection)
        connection.commit()
    alone = [connection.execute(statements.retention.try_prune_lock()).scalar_one() for connection in connections]
    assert alone == [True, True, False]
    assert connections[0].execute(statements.retention.release_prune_lock()).scalar_one() is True
    for connection, engine in zip(connections, engines, strict=True):
        connection.close()
        engine.dispose()


async def test_between_two_rounds_another_process_may_prune(pg_engine: Engine, async_pg_engine: AsyncEngine):
    assert (await Retention(async_pg_engine, Periods(inbox=14 * DAY)).prune()).alone
    with pg_engine.connect() as other:  # while the first one's connections stay in its pool
        assert other.execute(statements.retention.try_prune_lock()).scalar_one() is True


def test_a_second_pruner_does_nothing_and_says_so(pg_engine: Engine, postgresql_url: str, run: Run):
    with pg_engine.begin() as connection:
        connection.execute(text(FILL), {"rows": 10})
    prune = ("prune", "--database-url", postgresql_url)
    with pg_engine.connect() as first:
        assert first.execute(statements.retention.try_prune_lock()).scalar_one() is True
        first.commit()
        ended = run(*prune)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == "nothing done: another prune is running on this database\n"
        assert (remembered(pg_engine), days(pg_engine, INBOX)) == (10, [])
        first.execute(statements.retention.release_prune_lock())
        first.commit()
    assert "inbox: 5 rows deleted" in run(*prune).out
    assert "nothing done" not in run(*prune).out


async def test_a_round_leaves_the_inbox_in_days(async_pg_engine: AsyncEngine, pg_engine: Engine):
    """Rows that came before there was a partition move to their day; days that are over go, whole."""
    moments = [NOW - 8 * DAY, NOW - 3 * DAY, NOW, NOW + 20 * DAY]
    with pg_engine.begin() as connection:
        statement = text(
            "INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at) VALUES ('H',:id,'T',:at)"
        )
        connection.execute(statement, [{"id": ids.new(at=at), "at": at} for at in moments])

    def retention(after: timedelta) -> Retention:
        return Retention(async_pg_engine, Periods(inbox=7 * DAY), clock=lambda: NOW + after)

    first = await retention(timedelta(0)).prune()
    assert (first.inbox, first.inbox_days_dropped, first.problems) == (1, [], [])
    assert (NOW - 3 * DAY).date() in days(pg_engine, INBOX)
    assert (NOW + 20 * DAY).date() in days(pg_engine, INBOX)
    second = await retention(6 * DAY).prune()
    assert (second.inbox, second.inbox_days_dropped) == (0, [(NOW - 3 * DAY).date()])
    assert remembered(pg_engine) == 2


async def test_a_day_that_is_in_use_is_left_and_said(async_pg_engine: AsyncEngine, pg_engine: Engine):
    old = ids.new(at=NOW)
    await Retention(async_pg_engine, Periods(inbox=7 * DAY), clock=lambda: NOW).prune()
    with pg_engine.connect() as consumer:
        consumer.execute(
            text("INSERT INTO outboxkit_inbox (handler, message_id, type) VALUES ('H', :id, 'T')"), {"id": old}
        )
        done = await Retention(async_pg_engine, Periods(inbox=7 * DAY), clock=lambda: NOW + 9 * DAY).prune()
        assert (done.inbox_days_dropped, done.busy) == ([], True)
        assert any("lock timeout" in problem for problem in done.problems)


REQUESTS = """
INSERT INTO outboxkit_idempotency (scope, principal, key, fingerprint, state, token, created_at, expires_at)
SELECT 'POST /orders', 'p' || n % 10, 'k' || n, '', 'done', 't', :now,
       :now - (n % 4 - 1) * interval '1 hour' - n * interval '1 millisecond'
FROM generate_series(1, :rows) n
"""
EFFECTS = """
INSERT INTO outboxkit_effect (key, state, token, started_at, used_at, locked_until)
SELECT 'e' || n, 'done', 't', :now - interval '40 days',
       :now - n % 4 * interval '10 days' - n * interval '1 millisecond', :now - interval '20 days'
FROM generate_series(1, :rows) n
"""
ABOUT = {
    "idempotency": (REQUESTS, lambda limit: statements.retention.prune_idempotency("postgresql", NOW, limit)),
    "effect": (EFFECTS, lambda limit: statements.retention.prune_effects("postgresql", NOW - 9 * DAY, limit)),
}


@pytest.mark.parametrize("table", ABOUT)
def test_a_batch_is_found_by_the_index_and_is_no_larger(pg_engine: Engine, table: str):
    fill, prune = ABOUT[table]
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(fill), {"rows": 20_000, "now": NOW})
        connection.execute(text(f"ANALYZE outboxkit_{table}"))
    with pg_engine.begin() as connection:
        nodes = explain(connection, prune(100))
        assert connection.execute(text(f"SELECT count(*) FROM outboxkit_{table}")).scalar_one() == 19_900
    scans = [
        node for node in nodes if "Scan" in node["Node Type"] and node.get("Relation Name") == f"outboxkit_{table}"
    ]
    assert {node["Node Type"] for node in scans} == {"Index Scan", "Tid Scan"}
    assert indexes_in(scans) == {f"outboxkit_{table}_{'expires' if table == 'idempotency' else 'used'}"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 200


async def test_a_key_that_is_taken_over_at_this_moment_is_left_to_its_new_run(
    async_pg_engine: AsyncEngine, pg_engine: Engine
):
    """The pruner passes it over, and sees afterwards that it is not expired any more."""
    with pg_engine.begin() as connection:
        for fill, _ in ABOUT.values():
            connection.execute(text(fill), {"rows": 3, "now": NOW - 30 * DAY})
    key = {"at": "k3", "effect": "e3", "later": NOW + DAY}
    with pg_engine.connect() as taking:
        taking.execute(text("UPDATE outboxkit_idempotency SET expires_at = :later WHERE key = :at"), key)
        taking.execute(text("UPDATE outboxkit_effect SET locked_until = :later WHERE key = :effect"), key)
        periods = Periods(inbox=7 * DAY)
        async with asyncio.timeout(60):  # it waits for nobody
            first = await Retention(async_pg_engine, periods, clock=lambda: NOW).prune()
        assert (first.idempotency, first.effects) == (2, 2)
        taking.commit()
    second = await Retention(async_pg_engine, periods, clock=lambda: NOW).prune()
    assert (second.idempotency, second.effects) == (0, 0)
    with pg_engine.connect() as connection:
        assert connection.execute(text("SELECT key FROM outboxkit_idempotency")).scalars().all() == ["k3"]
        assert connection.execute(text("SELECT key FROM outboxkit_effect")).scalars().all() == ["e3"]


def test_the_clock_of_the_database_decides(pg_engine: Engine, postgresql_url: str):
    """The command is in a time zone of its own, and asks for no other time."""
    insert = "INSERT INTO outboxkit_idempotency VALUES ('s', 'p', :key, '', 'done', 't', NULL, NULL, NULL, NULL, NULL, "
    with pg_engine.begin() as connection:
        for key, ago in (("expired", "1 second"), ("new", "-60 seconds")):
            connection.execute(text(f"{insert} now(), now() - interval '{ago}')"), {"key": key})
    said = run_to_end([COMMAND, "prune", "--database-url", postgresql_url], {"TZ": "Pacific/Kiritimati"}).stdout
    assert "idempotency keys: 1 row deleted\n" in said
    with pg_engine.connect() as connection:
        assert connection.execute(text("SELECT key FROM outboxkit_idempotency")).scalars().all() == ["new"]
