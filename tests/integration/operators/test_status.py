"""`outboxkit status` on PostgreSQL: one snapshot, and what the server knows."""

import asyncio
import json
import os
import secrets
import subprocess
from typing import Any

import psycopg
from sqlalchemy import Engine, event, text

from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import LIMITS, Limits
from outboxkit.operators.status import Status, read_figures, read_status
from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import load
from outboxkit.statements.dialects import snapshot_options
from tests.integration.operators.doctoring import NOW
from tests.processes import programs
from tests.servers import Server
from tests.support.pages import libpq
from tests.unit.cli.conftest import Run, run  # noqa: F401 - a fixture

OUTBOX = """
    INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, created_at, due_at, held,
                                  destination)
    SELECT 'm' || n, 'T' || n % 4, 'k' || n % 100, convert_to(repeat('x', 200), 'UTF8'), '{}', 'x', now(), :due, :held,
           :destination
    FROM generate_series(1, :rows) n
"""
DEFAULT = {"destination": "default"}
HERE = DEFAULT | {"due": None, "held": False}


def read(url: str, *, limits: Limits = LIMITS) -> Status:
    """The status of a database."""

    async def examined() -> Status:
        engine = process.engine(url, name="outboxkit status")
        try:
            return await read_status(Installation(load({"database_url": url}), engine, limits=limits))
        finally:
            await engine.dispose()

    return asyncio.run(examined())


def test_a_row_that_is_moved_meanwhile_is_counted_once(pg_engine: Engine, postgresql_url: str) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text(OUTBOX), {"rows": 1} | HERE)
    mover = psycopg.connect(libpq(postgresql_url), autocommit=True)
    executed = []

    def move(*arguments: Any) -> None:
        if "due_at IS NULL" in arguments[2]:
            executed.append(mover.execute("UPDATE outboxkit_outbox SET held = true, due_at = '9999-12-31 00:00+00'"))

    event.listen(Engine, "after_cursor_execute", move)
    try:
        with pg_engine.connect().execution_options(**snapshot_options("postgresql")) as connection:
            found = read_figures(connection, utc_now())
    finally:
        event.remove(Engine, "after_cursor_execute", move)
        mover.close()
    assert executed
    assert (found.outbox.ready.value, found.outbox.parked.value, found.outbox.pending.value) == (1, 0, 1)


def test_an_open_transaction_is_named_without_its_query(postgresql_url: str) -> None:
    with psycopg.connect(libpq(postgresql_url), application_name="nightly report") as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 'hunter2'")
        found = read(postgresql_url, limits=NOW)
        about = f"Session {reader.info.backend_pid} of role"
        (advice,) = [each for each in found.advice if each.code == "transaction-open" and about in each.what]
        assert "(nightly report)" in advice.what
        assert "hunter2" not in repr(found)


def test_sessions_are_those_of_outboxkit_in_this_database(postgresql: Server, postgresql_url: str) -> None:
    names = (
        "outboxkit relay",
        "outboxkit consumer billing",
        "outboxkit consumer billing",
        "psql",
        "my outboxkit relay",
    )
    connections = [psycopg.connect(libpq(postgresql_url), application_name=name, autocommit=True) for name in names]
    elsewhere = psycopg.connect(libpq(postgresql.url), application_name="outboxkit relay")
    figures = read(postgresql_url).figures
    assert figures is not None
    assert figures.sessions == {"outboxkit consumer billing": 2, "outboxkit relay": 1}
    for connection in (*connections, elsewhere):
        connection.close()


def test_a_role_that_may_not_see_others_is_told_which_right_it_lacks(postgresql_url: str) -> None:
    name = f"operator_{secrets.token_hex(6)}"
    url = f"{postgresql_url}?options=-crole%3D{name}"
    with psycopg.connect(libpq(postgresql_url), autocommit=True, application_name="outboxkit relay") as connection:
        connection.execute(f"CREATE ROLE {name}; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
        found = read(url)
        connection.execute(found.advice[0].commands[0])
        granted = read(url)
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
    assert [each.code for each in found.advice] == ["sessions-hidden"]
    assert granted.advice == ()


def test_it_writes_nothing(postgresql_url: str) -> None:
    """So that it runs on a server that is read-only after a failover."""
    said(f"{postgresql_url}?options=-cdefault_transaction_read_only%3Don")


def said(url: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown_by(url, "--json"))
    return found


def shown_by(url: str, *arguments: str) -> str:
    command = [programs() / "outboxkit", "status", *arguments]
    environment = os.environ | {"OUTBOXKIT_DATABASE_URL": url}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
