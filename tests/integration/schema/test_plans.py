"""Each statement uses the index that its docstring names, by PostgreSQL's own plan for tables of some size."""

import inspect
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from outboxkit import statements
from outboxkit.operators import sql
from outboxkit.statements.dead import Selection
from tests.servers import Server, create_database, drop_database

ROWS = 20_000
NOW = datetime.now(UTC)
FILL = (
    """
    INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, created_at, due_at, held)
    SELECT 'm' || n, 'T' || n % 5, 'k' || n % 1000, '{}', '{}', 'application/json', now(),
           CASE WHEN n % 2 = 0 THEN now() + (n - :rows / 2) * interval '1 second' END, n % 4 = 0
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_dead_letter (side, message_id, type, key, payload, headers, content_type, reason, attempts,
                                       position, parked)
    SELECT 'outbox', 'd' || n, 'T', 'k' || n, '{}', '{}', 'application/json', 'rejected', 10, n, n % 10 = 0
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at)
    SELECT 'H' || n % 3, 'm' || n, 'T', now() - n * interval '1 second' FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_attempt (queue, message_id, starts)
    SELECT 'q', 'm' || n, 1 FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_pause (process, name, since, why, paused_by)
    SELECT 'consumer', 'q' || n, now(), 'w', 'ada' FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_audit (action, operator, filter, started_at)
    SELECT 'pause', 'ada', '{}', now() - n * interval '1 minute' FROM generate_series(1, :rows) n
    """,
)

HANDLED = {"handler": "H1", "message_id": "m1", "type": "T", "attempts": 1, "payload_crc": 7, "made": NOW}
HANDLED_ALL = {"handlers": ["H1"], "message_ids": ["m1"], "types": ["T"], "attempts": [1], "payload_crcs": [7]}
HANDLED_ALL["mades"] = [NOW]
COUNTED = {"queue": "q", "message_id": "m1"}
READY, DUE, KEY, HELD = (f"outboxkit_outbox_{name}" for name in ("ready", "due", "key", "held"))
PRIMARY, INBOX, PARKED = "outboxkit_outbox_pkey", "outboxkit_inbox_pkey", "outboxkit_dead_letter_parked"
INBOX_DEFAULT, ATTEMPT = "outboxkit_inbox_default_pkey", "outboxkit_attempt_pkey"
OURS = {"destination": "default"}
CLAIM = {**OURS, "limit": 500, "payload_limit": 1000}
SHARE = {"relays": 3, "rank": 1, "except_keys": ["k1", "k2"]}
POSITIONS = list(range(5000, 5500))
BURIED = {"reason": "rejected", "error": "no", "failures": 1, "parked": True, "now": NOW}
BATCH = {
    **OURS,
    "keys": [f"k{n}" for n in range(100)],
    "last_positions": [10_000] * 100,
    "own_positions": list(range(9900, 10_000)),
    "floor": 5000,
}
PLANS: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "claim.claim_ready": (statements.claim.claim_ready(), CLAIM | {"floor": 5000}, {READY}),
    "claim.claim_due": (statements.claim.claim_due(), CLAIM | {"now": NOW}, {DUE}),
    "claim.claim_ready_of_share": (
        statements.claim.claim_ready_of_share(),
        CLAIM | SHARE | {"floor": 5000, "last": 9000},
        {READY},
    ),
    "claim.claim_due_of_share": (
        statements.claim.claim_due_of_share(),
        CLAIM | SHARE | {"now": NOW},
        {DUE},
    ),
    "claim.oldest_ready": (statements.claim.oldest_ready(), {**OURS, "floor": 5000}, {READY}),
    "claim.payloads": (
        statements.claim.payloads("postgresql"),
        {"positions": POSITIONS, "budget": 1000},
        {PRIMARY},
    ),
    "claim.predecessors": (statements.claim.predecessors("postgresql"), BATCH, {KEY, HELD, PARKED}),
    "settle.forget_rows": (statements.settle.forget_rows("postgresql"), {"positions": POSITIONS}, {PRIMARY}),
    "settle.keep_published": (statements.settle.keep_published("postgresql"), {"positions": POSITIONS}, {PRIMARY}),
    "settle.reschedule": (
        statements.settle.reschedule(),
        {"at_position": 5000, "failures": 1, "error": "no", "due": NOW, "now": NOW},
        {PRIMARY},
    ),
    "settle.hold_rows": (statements.settle.hold_rows("postgresql"), {"positions": POSITIONS, "due": NOW}, {PRIMARY}),
    "settle.park": (
        statements.settle.park("postgresql"),
        {"of_destination": "default", "positions": POSITIONS[:20], "due": NOW},
        {PRIMARY, PARKED},
    ),
    "settle.bury": (statements.settle.bury("postgresql"), {"positions": POSITIONS} | BURIED, {PRIMARY}),
    "claim.count_due": (statements.claim.count_due(NOW - timedelta(hours=2)), OURS, {READY, DUE}),
    "claim.count_later": (statements.claim.count_later(NOW + timedelta(hours=2)), OURS, {DUE}),
    "inbox.record_processed": (statements.inbox.record_processed("postgresql"), HANDLED, {INBOX}),
    "inbox.record_all": (statements.inbox.record_all("postgresql"), HANDLED_ALL, {INBOX}),
    "inbox.payload_crcs": (
        statements.inbox.payload_crcs("postgresql"),
        {"handlers": ["H1"], "ids": ["m1"]},
        {INBOX_DEFAULT},
    ),
    "retention.prune_inbox": (
        statements.retention.prune_inbox("postgresql", NOW - timedelta(hours=3), 1000),
        {},
        {"outboxkit_inbox_processed"},
    ),
    "attempts.start": (statements.attempts.start("postgresql"), COUNTED, {ATTEMPT}),
    "attempts.fail": (statements.attempts.fail("postgresql"), COUNTED | {"failed": 1}, {ATTEMPT}),
    "attempts.call_off": (
        statements.attempts.call_off(),
        {f"at_{name}": value for name, value in COUNTED.items()},
        {ATTEMPT},
    ),
    "pauses.current_pause": (
        statements.pauses.current_pause("postgresql"),
        {"process": "consumer", "name": "q7"},
        {"outboxkit_pause_pkey"},
    ),
    "pauses.end_pause": (
        statements.pauses.end_pause("postgresql"),
        {"process": "consumer", "name": "q7"},
        {"outboxkit_pause_pkey"},
    ),
    "actions.count_action": (
        sql.actions.count_action(),
        {"of": 7, "counted": 1},
        {"outboxkit_audit_pkey"},
    ),
    "actions.newest_actions": (
        sql.actions.newest_actions(),
        {"since": NOW - timedelta(days=7), "before_at": NOW + timedelta(days=1), "before_id": 1, "limit": 50},
        {"outboxkit_audit_started"},
    ),
    "dead.newest": (statements.dead.newest(Selection()), {"limit": 50}, {"outboxkit_dead_letter_open"}),
    "dead.count_newest": (statements.dead.count_newest(Selection()), {"limit": 50}, {"outboxkit_dead_letter_open"}),
    "attempts.forget_attempts": (
        statements.attempts.forget_attempts("postgresql"),
        {"queue": "q", "ids": ["m1"]},
        {ATTEMPT},
    ),
}
SORTS = {"claim.predecessors": {"Sort"}, "claim.payloads": {"Sort"}}
"""Of one key's rows behind a bitmap scan, which a relay's own session does not plan; of a batch's large rows."""


@pytest.fixture(scope="module")
def filled(postgresql: Server, template: str) -> Iterator[Engine]:
    name = f"outboxkit_{secrets.token_hex(6)}"
    engine = create_engine(create_database(postgresql.url, name, template=template))
    with engine.begin() as connection:
        for statement in FILL:
            connection.execute(text(statement), {"rows": ROWS})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    yield engine
    engine.dispose()
    drop_database(postgresql.url, name)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("prepared", [False, True], ids=["for these values", "for all values"])
def test_a_statement_uses_its_indexes_and_nothing_else(filled: Engine, name: str, prepared: bool):
    """Also by the plan that is made once for all batches: the driver prepares what it runs often."""
    statement, given, indexes = PLANS[name]
    nodes = list(walk((explain_prepared if prepared else explain)(filled, statement, given)))
    used = {index for node in nodes for index in [node.get("Index Name"), *node.get("Conflict Arbiter Indexes", [])]}
    assert used - {None} == indexes
    nodes = [node for node in nodes if node.get("Relation Name") not in ("outboxkit_schema_version", "pg_database")]
    assert not {"Seq Scan", "Sort"} & {node["Node Type"] for node in nodes} - SORTS.get(name, set())


@pytest.mark.parametrize("name", PLANS)
def test_the_docstring_names_these_indexes(name: str):
    module, _, function = name.partition(".")
    home = statements if hasattr(statements, module) else sql
    doc = inspect.getdoc(getattr(getattr(home, module), function)) or ""
    for index in PLANS[name][2]:
        assert ("primary key" if index.endswith("_pkey") else index) in doc


def test_a_claim_stays_short_however_many_rows_wait_for_later(filled: Engine):
    """`claim_ready` reads no rows but those that it returns."""
    found = run(filled, PLANS["claim.claim_ready"][0], CLAIM | {"floor": 0, "limit": 100})
    (scan,) = [node for node in walk(found) if "Index Name" in node]
    assert (scan["Actual Rows"], scan.get("Rows Removed by Filter", 0)) == (100, 0)


def test_what_stands_before_is_found_by_one_probe_for_each_key(filled: Engine):
    found = run(filled, PLANS["claim.predecessors"][0], BATCH, "enable_bitmapscan = off")  # as a relay's session has it
    scans = [node for node in walk(found) if "Index Name" in node]
    assert {node["Index Name"] for node in scans} == {KEY, HELD, PARKED}
    assert max(node["Actual Loops"] for node in scans) <= 100
    assert max(node["Actual Rows"] for node in scans) <= 1


@pytest.mark.parametrize("left", [0, 20], ids=["empty", "nearly empty"])
def test_what_stands_before_is_found_by_key_when_the_statistics_are_of_an_outbox_that_was(
    postgresql: Server, template: str, left: int
):
    name = f"outboxkit_{secrets.token_hex(6)}"
    engine = create_engine(create_database(postgresql.url, name, template=template), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(FILL[0]), {"rows": left})
            connection.execute(text("VACUUM ANALYZE outboxkit_outbox"))
            connection.execute(text(FILL[0]), {"rows": ROWS})
        found = explain(engine, PLANS["claim.predecessors"][0], BATCH)
        assert {node.get("Index Name") for node in walk(found)} - {None} == {KEY, HELD, PARKED}
    finally:
        engine.dispose()
        drop_database(postgresql.url, name)


def test_the_writers_are_those_of_this_database(filled: Engine, pg_engine: Engine):
    """Databases that were made from one template share the number of the table."""
    with filled.connect() as here, pg_engine.connect() as there, filled.connect() as reader:
        query = statements.claim.writers()
        there.execute(text("DELETE FROM outboxkit_outbox WHERE position = 0"))
        reader.execute(text("DELETE FROM outboxkit_outbox WHERE position = 0"))
        assert reader.execute(query).all() == []
        here.execute(text("SELECT FROM outboxkit_outbox LIMIT 1 FOR UPDATE"))
        assert reader.execute(query).all() == []
        here.execute(text("DELETE FROM outboxkit_outbox WHERE position = 0"))
        assert len(reader.execute(query).all()) == 1


def plan_as_relays_do(connection: Connection, statement: Any) -> None:
    """A claim of a share takes few rows of many, for which another session would rather sort those of a bitmap."""
    if "hashtext" in str(statement):
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")


def explain(engine: Engine, statement: Any, given: dict[str, Any]) -> dict[str, Any]:
    query, values = compiled(engine, statement, given)
    with engine.connect() as connection:
        plan_as_relays_do(connection, statement)
        plan: dict[str, Any] = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", values).scalar_one()[0]
    return plan["Plan"]


def explain_prepared(engine: Engine, statement: Any, given: dict[str, Any]) -> dict[str, Any]:
    query, values = compiled(engine, statement, given)
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", query)))
    for number, name in enumerate(names, 1):
        query = query.replace(f"%({name})s", f"${number}")
    with engine.connect() as connection:
        plan_as_relays_do(connection, statement)
        driver: Any = connection.connection.driver_connection
        cursor = psycopg.ClientCursor(driver)
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute("PREPARE prepared AS " + query.replace("%%", "%"))
        arguments = f"({', '.join(['%s'] * len(names))})" if names else ""
        execute = f"EXPLAIN (FORMAT JSON) EXECUTE prepared{arguments}"
        plan: dict[str, Any] = cursor.execute(execute, [values[name] for name in names]).fetchall()[0][0][0]
        cursor.execute("DEALLOCATE prepared")
    return plan["Plan"]


def run(engine: Engine, statement: Any, given: dict[str, Any], *settings: str) -> dict[str, Any]:
    query, values = compiled(engine, statement, given)
    with engine.connect() as connection:
        for setting in settings:
            connection.exec_driver_sql(f"SET LOCAL {setting}")
        found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", values).scalar_one()
        connection.rollback()
    plan: dict[str, Any] = found[0]["Plan"]
    return plan


def compiled(engine: Engine, statement: Any, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    made = statement.compile(engine, compile_kwargs={"render_postcompile": True})
    return str(made), made.params | given


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)
