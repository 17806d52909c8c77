"""What `outboxkit doctor` finds about a PostgreSQL server and the way to it, each finding produced for real."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import make_url

from outboxkit.operators.doctor import server
from outboxkit.operators.findings import Diagnosis, Limits, Severity
from outboxkit.runtime.outage import utc_now
from tests.integration.operators.doctoring import NOW, codes, connected, examined, examining, look, one, role
from tests.servers import Server
from tests.support.polling import eventually

OF_TEST_SERVERS = {"durability-off", "connections-used-up", "slot-unused"}


def test_a_new_installation_is_safe_but_for_its_server(postgresql_url: str) -> None:
    report = examined(postgresql_url)
    worse = {finding.code for finding in report.findings if finding.severity is not Severity.NOTE}
    assert worse <= OF_TEST_SERVERS
    assert report.left_out == ()
    assert make_url(postgresql_url).password not in repr(report)


def one_of(url: str) -> Diagnosis:
    finding = examining(url, server.why_away)
    assert finding is not None
    assert finding.severity is Severity.PROBLEM
    return finding


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"password": "hunter2"}, "password authentication failed"),
        ({"database": "no such one"}, "does not exist"),
        ({"query": {"sslmode": "require"}}, "SSL"),
        ({"host": "nowhere.invalid"}, "nowhere.invalid"),
        ({"port": 1}, "refused"),
    ],
    ids=str,
)
def test_a_database_that_cannot_be_reached(postgresql_url: str, parts: dict[str, Any], said: str) -> None:
    finding = one_of(make_url(postgresql_url).set(**parts).render_as_string(hide_password=False))
    assert (finding.code, said in finding.what) == ("database-away", True)
    assert "hunter2" not in finding.what


def test_a_role_that_may_not_log_in(postgresql_url: str) -> None:
    with role(postgresql_url, "NOLOGIN") as (_, url):
        assert one_of(url).code == "database-away"


def test_no_connection_is_left(postgresql_url: str) -> None:
    with role(postgresql_url, "LOGIN CONNECTION LIMIT 0") as (_, url):
        finding = one_of(url)
    assert finding.code == "connections-used-up"
    assert "CONNECTION LIMIT of the role" in finding.cure


def test_no_tables(empty_postgresql_url: str) -> None:
    report = examined(empty_postgresql_url)
    (finding,) = [each for each in report.findings if each.code not in OF_TEST_SERVERS]
    assert (finding.code, finding.commands) == ("tables-missing", ("outboxkit migrate",))
    assert "database: relays" in report.left_out
    assert "database: clock" in report.passed


def test_tables_in_another_schema(empty_postgresql_url: str) -> None:
    with connected(empty_postgresql_url) as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.outboxkit_outbox ()")
    finding = one(empty_postgresql_url, server.check_tables, "tables-missing")
    assert "schema shop" in finding.what
    assert finding.commands == ("?options=-csearch_path%3Dshop",)


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ("UPDATE outboxkit_schema_version SET version = 0", "tables-missing", "problem"),
        ("DELETE FROM outboxkit_schema_version", "tables-behind", "problem"),
        ("ALTER TABLE outboxkit_outbox DROP COLUMN held", "part-missing", "problem"),
        ("DROP TABLE outboxkit_inbox_default", "part-missing", "problem"),
        ("DROP INDEX outboxkit_outbox_key", "part-missing", "warning"),
        ("DROP TRIGGER outboxkit_notify ON outboxkit_outbox", "part-missing", "warning"),
    ],
)
def test_other_tables_than_those_of_this_release(postgresql_url: str, change: str, code: str, severity: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute("CREATE TABLE changed ()")
        connection.execute(change)
    finding = look(postgresql_url, server.check_tables)[0]
    assert (finding.code, finding.severity) == (code, severity)
    with connected(postgresql_url) as connection:  # so that no other test gets this database
        connection.execute("ALTER DATABASE " + str(make_url(postgresql_url).database) + " SET work_mem = '4MB'")


def test_what_a_crash_would_lose(postgresql_url: str) -> None:
    whats = [finding.what for finding in look(postgresql_url, server.check_durability)]
    with connected(postgresql_url) as connection:
        for setting in ("fsync", "full_page_writes"):
            is_off = connection.execute(f"SHOW {setting}").fetchone() == ("off",)
            assert (f"{setting} is off on the server." in whats) == is_off


def test_commits_that_do_not_wait_for_the_disk(postgresql_url: str) -> None:
    database = make_url(postgresql_url).database
    of_session = one(
        f"{postgresql_url}?options=-csynchronous_commit%3Doff",
        server.check_durability,
        "durability-off",
        about="synchronous_commit",
    )
    assert "in this session, set by: client" in of_session.what
    with connected(postgresql_url) as connection:
        connection.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
        finding = one(postgresql_url, server.check_durability, "durability-off", about="synchronous_commit")
        assert f"for database {database}" in finding.what
        connection.execute(finding.commands[0])
        assert not [each for each in look(postgresql_url, server.check_durability) if "synchronous" in each.what]
        with role(postgresql_url) as (name, _):
            connection.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
            finding = one(postgresql_url, server.check_durability, "durability-off", about="synchronous_commit")
            assert f"for role {name}" in finding.what
            connection.execute(finding.commands[0])
            assert not [each for each in look(postgresql_url, server.check_durability) if "synchronous" in each.what]


def test_an_unlogged_table(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute("ALTER TABLE outboxkit_effect SET UNLOGGED")
        finding = one(postgresql_url, server.check_durability, "durability-off", about="unlogged")
        assert "outboxkit_effect" in finding.what
        connection.execute(finding.commands[0])
    assert not [each for each in look(postgresql_url, server.check_durability) if "unlogged" in each.what]


def test_a_server_that_takes_no_writes(postgresql_url: str) -> None:
    url = f"{postgresql_url}?options=-cdefault_transaction_read_only%3Don"
    assert "server-read-only" in codes(url, server.check_writes)
    assert "server-read-only" not in codes(postgresql_url, server.check_writes)


def test_connections_that_are_used(postgresql_url: str) -> None:
    finding = one(postgresql_url, server.check_writes, "connections-used-up", limits=Limits(connections=0))
    with connected(postgresql_url) as connection:
        assert connection.execute(finding.commands[0]).fetchone()


@pytest.mark.parametrize(("off", "severity"), [(60, "warning"), (-3600, "problem")])
def test_clocks_that_differ(postgresql_url: str, off: int, severity: str) -> None:
    def clock() -> datetime:
        return utc_now() + timedelta(seconds=off)

    slow = Limits(skew=timedelta(seconds=20), check_seconds=60)
    finding = one(postgresql_url, server.check_clock, "clock-skew", clock=clock, limits=slow)
    assert finding.severity == severity
    assert ("behind" if off > 0 else "ahead of") in finding.what


def test_autovacuum_is_off_for_the_server(own_postgresql: Server) -> None:
    url = own_postgresql.url
    with connected(url) as connection:
        try:
            connection.execute("ALTER SYSTEM SET autovacuum = off")
            connection.execute("SELECT pg_reload_conf()")
            found = eventually(lambda: look(url, server.check_vacuum, limits=NOW))
        finally:
            connection.execute("ALTER SYSTEM RESET autovacuum")
            connection.execute("SELECT pg_reload_conf()")
    assert [finding.what for finding in found] == ["autovacuum is off on the server."]
