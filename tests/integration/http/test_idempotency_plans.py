"""The ledger's statements go by the primary key and read no more than one row, whatever the table holds."""

import inspect
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from outboxkit import statements
from tests.integration.schema.test_plans import compiled, explain, explain_prepared, walk
from tests.servers import Server, create_database, drop_database

FILL = """
INSERT INTO outboxkit_idempotency
    (scope, principal, key, fingerprint, state, token, created_at, expires_at, locked_until)
SELECT 'POST /orders', 'user-' || n % 50, 'k' || n, sha256('r'),
       CASE WHEN n % 100 = 0 THEN 'processing' ELSE 'done' END,
       't', now(), now() + n * interval '1 second' - interval '1 hour', now()
FROM generate_series(1, 20000) n
"""
THIS = {"at_scope": "POST /orders", "at_principal": "user-7", "at_key": "k7007"}
MINE = THIS | {"at_token": "t"}
TAKE = THIS | {"asked": b"a" * 32, "token_now": "t2", "retention": timedelta(hours=24), "lease": timedelta(minutes=1)}
LOCKED = TAKE | {"lease": None, "request_lock": 2**62, "request_part": -7, "asked_part": 9}
STATEMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "take_key": (statements.idempotency.take_key("postgresql"), TAKE),
    "take_alone": (statements.idempotency.take_alone("postgresql"), LOCKED),
    "look_up": (statements.idempotency.look_up("postgresql"), THIS),
    "keep_steps": (statements.idempotency.keep_steps("postgresql"), MINE | {"finished": b"{}", "lease": TAKE["lease"]}),
    "record_answer": (statements.idempotency.record_answer(), MINE | {"status": 200, "headers": b"[]", "body": b""}),
    "end_key_lease": (statements.idempotency.end_key_lease("postgresql"), MINE),
    "forget_key": (statements.idempotency.forget_key(), MINE),
}
PRIMARY = "outboxkit_idempotency_pkey"


@pytest.fixture(scope="module")
def filled(postgresql: Server, template: str) -> Iterator[Engine]:
    name = f"outboxkit_{secrets.token_hex(6)}"
    engine = create_engine(create_database(postgresql.url, name, template=template))
    with engine.begin() as connection:
        connection.execute(text(FILL))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE outboxkit_idempotency"))
    yield engine
    engine.dispose()
    drop_database(postgresql.url, name)


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("prepared", [False, True], ids=["for these values", "for all values"])
def test_a_statement_goes_by_the_primary_key(filled: Engine, name: str, prepared: bool):
    statement, given = STATEMENTS[name]
    nodes = list(walk((explain_prepared if prepared else explain)(filled, statement, given)))
    used = {index for node in nodes for index in [node.get("Index Name"), *node.get("Conflict Arbiter Indexes", [])]}
    assert used - {None} == {PRIMARY}
    assert not {"Seq Scan", "Sort"} & {node["Node Type"] for node in nodes}
    for node in nodes:
        if node.get("Index Name"):
            assert all(column in node["Index Cond"] for column in ("scope", "principal", "key"))
    assert "primary key" in (inspect.getdoc(getattr(statements.idempotency, name)) or "")


def test_where_a_key_is_in_use_no_lock_is_even_tried(filled: Engine):
    """The question is asked before the locks are taken, in whatever order the planner would like it."""
    query, given = compiled(filled, statements.idempotency.take_alone("postgresql"), LOCKED)
    with filled.connect() as connection:
        connection.exec_driver_sql(query, given)
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert connection.execute(text(held)).scalar_one() == 0
        connection.exec_driver_sql(query, given | {"at_key": "unknown"})
        assert connection.execute(text(held)).scalar_one() == 2
        connection.rollback()
