"""What `outboxkit doctor` finds about transactions, locks, vacuum and numbers, each finding produced for real."""

from dataclasses import replace

import psycopg
import pytest

from outboxkit.operators.doctor import server, sessions
from outboxkit.operators.findings import Limits
from tests.integration.operators.doctoring import NOW, codes, connected, examined, look, one, role
from tests.support.pages import libpq
from tests.support.polling import eventually

ROWS = """
    INSERT INTO outboxkit_dead_letter (side, type, payload, headers, content_type, reason, attempts)
    SELECT 'outbox', 'T', '', '{}', 'x', 'refused', 1 FROM generate_series(1, 100)
"""


def test_an_open_transaction_is_named_and_its_cure_ends_it(postgresql_url: str) -> None:
    with (
        connected(postgresql_url) as operator,
        psycopg.connect(libpq(postgresql_url), application_name="nightly report") as reader,
    ):
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 'hunter2'")
        about = f"Session {reader.info.backend_pid} of role"  # autovacuum has transactions of its own
        finding = one(postgresql_url, sessions.check_transactions, "transaction-open", about=about)
        assert "(nightly report)" in finding.what
        assert "idle in transaction, its last query at" in finding.what
        assert "hunter2" not in repr(finding)
        assert finding.severity == "problem"
        assert "transaction-open" not in codes(postgresql_url, sessions.check_transactions, limits=Limits())
        operator.execute(finding.commands[0])
        eventually(lambda: about not in repr(look(postgresql_url, sessions.check_transactions)))
        with pytest.raises(psycopg.OperationalError):
            reader.execute("SELECT 1")


def test_sessions_that_this_role_may_not_see(postgresql_url: str) -> None:
    with (
        connected(postgresql_url, name="outboxkit relay"),
        connected(postgresql_url) as owner,
        role(postgresql_url) as (name, url),
    ):
        finding = one(url, sessions.check_transactions, "sessions-hidden")
        assert f"from role {name}" in finding.what
        owner.execute(finding.commands[0])
        assert "sessions-hidden" not in codes(url, sessions.check_transactions)


@pytest.mark.parametrize(
    ("table", "mode"), [("outboxkit_outbox", "SHARE"), ("outboxkit_inbox_default", "ACCESS EXCLUSIVE")]
)
def test_a_table_that_is_locked(postgresql_url: str, table: str, mode: str) -> None:
    with psycopg.connect(libpq(postgresql_url), application_name="a migration") as altering:
        altering.execute(f"LOCK TABLE {table} IN {mode} MODE")
        about = f"Session {altering.info.backend_pid} (a migration), idle in transaction, has locked {table} ("
        assert one(postgresql_url, sessions.check_locks, "table-locked", about=about).severity == "problem"
    eventually(lambda: not codes(postgresql_url, sessions.check_locks))


def test_a_check_that_a_lock_stops_says_so(postgresql_url: str) -> None:
    with psycopg.connect(libpq(postgresql_url)) as altering:
        altering.execute("LOCK TABLE outboxkit_effect IN ACCESS EXCLUSIVE MODE")
        report = examined(postgresql_url)
    (finding,) = [each for each in report.findings if each.code == "not-checked" and each.check == "effects"]
    assert "LockNotAvailable" in finding.what
    assert "`table-locked` names the session" in finding.cure


def test_a_slot_that_nobody_reads(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        name = f"doctor_{connection.info.backend_pid}"
        connection.execute(f"SELECT pg_create_physical_replication_slot('{name}', true)")
        try:
            bad = [finding for finding in look(postgresql_url, sessions.check_slots) if name in finding.what]
            fine = look(postgresql_url, sessions.check_slots, limits=Limits())
        finally:
            connection.execute(f"SELECT pg_drop_replication_slot('{name}')")
    assert [(finding.code, finding.severity) for finding in bad] == [("slot-unused", "problem")]
    assert bad[0].commands == (f"SELECT pg_drop_replication_slot('{name}');",)
    assert name not in repr(fine)


def test_autovacuum_is_off_for_a_table(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute("ALTER TABLE outboxkit_outbox SET (autovacuum_enabled = false)")
        finding = one(postgresql_url, server.check_vacuum, "vacuum-behind", limits=Limits())
        assert "Autovacuum is off for the table outboxkit_outbox" in finding.what
        connection.execute(finding.commands[0])
    assert codes(postgresql_url, server.check_vacuum, limits=Limits()) == []


def test_dead_rows_that_nobody_removes(postgresql_url: str) -> None:
    few = replace(NOW, dead_rows=100)
    with connected(postgresql_url) as connection:
        connection.execute("ALTER TABLE outboxkit_dead_letter SET (autovacuum_enabled = false)")
        connection.execute(ROWS)
        connection.execute("DELETE FROM outboxkit_dead_letter")
        dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outboxkit_dead_letter'"
        eventually(lambda: connection.execute(dead).fetchone(), lambda row: row == (100,))
        finding = one(postgresql_url, server.check_vacuum, "vacuum-behind", limits=few, about="dead_letter")
        assert "outboxkit_dead_letter has 100 dead rows, and was last vacuumed never" in finding.what
        for command in finding.commands:
            connection.execute(command)
        eventually(lambda: "vacuum-behind" not in codes(postgresql_url, server.check_vacuum, limits=few))
