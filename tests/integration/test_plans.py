"""Each statement uses the index that its docstring names, by PostgreSQL's own plan for tables of some size."""

import inspect
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from outboxkit import statements
from tests.servers import Server, create_database, drop_database

ROWS = 20_000
NOW = datetime.now(UTC)
FILL = (
    """
    INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type, created_at, due_at)
    SELECT 'm' || n, 'T' || n % 5, '{}', '{}', 'application/json', now(),
           CASE WHEN n % 2 = 0 THEN now() + (n - :rows / 2) * interval '1 second' END
    FROM generate_series(1, :rows) n
    """,
    """
    INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at)
    SELECT 'H' || n % 3, 'm' || n, 'T', now() - n * interval '1 second' FROM generate_series(1, :rows) n
    """,
)

READY, DUE, PRIMARY, INBOX = (
    "outboxkit_outbox_ready", "outboxkit_outbox_due", "outboxkit_outbox_pkey", "outboxkit_inbox_pkey",
)  # fmt: skip
PLANS = {
    "claim_ready": (statements.claim_ready(500), {READY}),
    "claim_due": (statements.claim_due(NOW, 500), {DUE}),
    "delete_published": (statements.delete_published(range(5000, 5500)), {PRIMARY}),
    "reschedule": (statements.reschedule(), {PRIMARY}),
    "count_due": (statements.count_due(NOW - timedelta(hours=2)), {READY, DUE}),
    "count_later": (statements.count_later(NOW + timedelta(hours=2)), {DUE}),
    "record_processed": (
        statements.record_processed("postgresql", handler="H1", message_id="m1", type_="T"),
        {INBOX},
    ),
}


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
def test_a_statement_uses_its_indexes_and_nothing_else(filled: Engine, name: str):
    statement, indexes = PLANS[name]
    nodes = list(walk(explain(filled, statement)))
    used = {index for node in nodes for index in [node.get("Index Name"), *node.get("Conflict Arbiter Indexes", [])]}
    assert used - {None} == indexes
    assert not {"Seq Scan", "Sort"} & {node["Node Type"] for node in nodes}


@pytest.mark.parametrize("name", PLANS)
def test_the_docstring_names_these_indexes(name: str):
    doc = inspect.getdoc(getattr(statements, name)) or ""
    for index in PLANS[name][1]:
        assert ("primary key" if index.endswith("_pkey") else index) in doc


def test_a_claim_stays_short_however_many_rows_wait_for_later(filled: Engine):
    """`claim_ready` reads no rows but those that it returns."""
    with filled.begin() as connection:
        query, values = compiled(filled, statements.claim_ready(100))
        found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).scalar_one()
    (scan,) = [node for node in walk(found[0]["Plan"]) if "Index Name" in node]
    assert (scan["Actual Rows"], scan.get("Rows Removed by Filter", 0)) == (100, 0)


def explain(engine: Engine, statement: Any) -> dict[str, Any]:
    query, values = compiled(engine, statement)
    with engine.connect() as connection:
        plan: dict[str, Any] = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", values).scalar_one()[0]
    return plan["Plan"]


def compiled(engine: Engine, statement: Any) -> tuple[str, dict[str, Any]]:
    made = statement.compile(engine, compile_kwargs={"render_postcompile": True})
    return str(made), made.params | ({"at_position": 5000, "due": NOW} if "at_position" in made.params else {})


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)
