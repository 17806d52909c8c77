"""`outboxkit status` on PostgreSQL: one snapshot, and what the server knows."""

import asyncio
import json
import os
import secrets
import subprocess
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import Engine, event, text

from outboxkit.cli import status
from outboxkit.cli.status import show
from outboxkit.cli.status.report import Status
from outboxkit.runtime.outage import utc_now
from tests.integration.dead_rows import dead, fill
from tests.pages import libpq
from tests.polling import eventually
from tests.processes import programs
from tests.servers import Server
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


def read(engine: Engine, *, later: timedelta = timedelta(0)) -> Status:
    with engine.connect() as connection:
        return status.read_status(connection, utc_now() + later)


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
        found = asyncio.run(status.read_url(postgresql_url))
    finally:
        event.remove(Engine, "after_cursor_execute", move)
        mover.close()
    assert executed
    assert (found.outbox.ready.value, found.outbox.parked.value, found.outbox.pending.value) == (1, 0, 1)


def test_sessions_are_those_of_outboxkit_in_this_database(
    pg_engine: Engine, postgresql: Server, postgresql_url: str
) -> None:
    names = ("outboxkit relay", "outboxkit consumer billing", "outboxkit prune", "psql", "my outboxkit relay")
    connections = [psycopg.connect(libpq(postgresql_url), application_name=name, autocommit=True) for name in names]
    elsewhere = psycopg.connect(libpq(postgresql.url), application_name="outboxkit relay")
    found = read(pg_engine)
    assert found.sessions is not None
    relay, consumer, other = found.sessions.relays, found.sessions.consumers, found.sessions.others
    pids = [connection.info.backend_pid for connection in connections[:3]]
    assert [[session.pid for session in ours] for ours in (relay, consumer, other)] == [[pid] for pid in pids]
    (session,) = relay
    assert (session.name, session.state) == ("outboxkit relay", "idle")
    assert session.since is not None
    assert abs(utc_now() - session.since) < timedelta(minutes=5)
    for connection in (*connections, elsewhere):
        connection.close()


def test_status_itself_is_no_session(postgresql_url: str) -> None:
    assert said(postgresql_url)["sessions"] == {"relays": [], "consumers": [], "others": []}


def test_who_holds_back_vacuum_is_named_without_its_query(pg_engine: Engine, postgresql_url: str) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text(OUTBOX), {"rows": 3000} | HERE)
    with psycopg.connect(libpq(postgresql_url), application_name="nightly report") as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 'hunter2'")
        with pg_engine.begin() as connection:
            connection.execute(text("DELETE FROM outboxkit_outbox"))
        vacuum = eventually(lambda: read(pg_engine, later=timedelta(minutes=2)).vacuum, lambda it: it.dead_rows >= 3000)
        holder = vacuum.oldest_transaction
        assert (holder.kind, holder.pid, holder.name) == ("session", reader.info.backend_pid, "nightly report")
        assert holder.state == "idle in transaction"
        assert holder.since <= holder.query_start
        assert 120 <= holder.seconds < 600
        found = read(pg_engine, later=timedelta(minutes=2))
        (line,) = found.advice
        assert line.startswith("3 000 dead rows cannot be removed")
        assert f"pg_terminate_backend({holder.pid})" in line
        shown = "\n".join(show.lines(found, width=200))
        assert f"held back by session {holder.pid} (nightly report), idle in transaction for" in shown
        printed = shown_by(postgresql_url, "--json")
        assert "nightly report" in printed
        assert "hunter2" not in shown + printed
    assert read(pg_engine).vacuum.oldest_transaction is None


def test_an_open_writer_holds_back_vacuum_too(pg_engine: Engine, postgresql_url: str) -> None:
    with psycopg.connect(libpq(postgresql_url)) as writer:
        writer.execute("SELECT pg_current_xact_id()")
        holder = read(pg_engine).vacuum.oldest_transaction
        assert holder.pid == writer.info.backend_pid


def test_a_role_that_may_not_see_others_is_told_which_right_it_lacks(pg_engine: Engine, postgresql_url: str) -> None:
    role = f"operator_{secrets.token_hex(6)}"
    url = f"{postgresql_url}?options=-crole%3D{role}"
    with psycopg.connect(libpq(postgresql_url), autocommit=True, application_name="outboxkit relay") as connection:
        pid = connection.info.backend_pid
        connection.execute(f"CREATE ROLE {role}; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        found = said(url)
        connection.execute(f"GRANT pg_read_all_stats TO {role}")
        granted = said(url)
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    (relay,) = found["sessions"]["relays"]
    assert (relay["pid"], relay["state"], relay["since"]) == (pid, None, None)
    assert found["missing_right"] == "pg_read_all_stats"
    assert found["advice"] == ["PostgreSQL hides other roles' sessions from this one: GRANT pg_read_all_stats to it"]
    assert granted["missing_right"] is None
    assert granted["sessions"]["relays"][0]["state"] == "idle"


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


def test_a_replay_says_that_no_relay_is_connected(pg_engine: Engine, postgresql_url: str, run: Run) -> None:  # noqa: F811
    fill(pg_engine, [dead(1), dead(2)])
    alone = run("dead", "replay", "1", "--database-url", postgresql_url)
    assert alone.out.endswith("\nno relay is connected to this database: start one, `outboxkit relay`\n")
    with psycopg.connect(libpq(postgresql_url), application_name="outboxkit relay"):
        assert "no relay" not in run("dead", "replay", "2", "--database-url", postgresql_url).out
