"""What `outboxkit doctor` finds about a PostgreSQL server and the way to it, each finding produced for real."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import make_url

from outboxkit.operators.doctor import durability, reach, sessions
from outboxkit.operators.doctor.installation import Thresholds
from outboxkit.operators.findings import Severity
from outboxkit.runtime.outage import utc_now
from tests.integration.doctoring import NOW, codes, connected, examined, look, one, role
from tests.polling import eventually
from tests.servers import Server

OF_TEST_SERVERS = {"fsync-off", "full-page-writes-off", "role-too-wide", "server-minor-old", "server-unsupported"}
OF_TEST_SERVERS |= {"schema-open"}  # before PostgreSQL 15


def test_a_new_installation_is_safe_but_for_its_server(postgresql_url: str) -> None:
    report = examined(postgresql_url)
    worse = {finding.code for finding in report.findings if finding.severity is not Severity.NOTE}
    assert worse - {"connections-few", "slot-unused"} <= OF_TEST_SERVERS
    assert report.left_out == ()
    assert make_url(postgresql_url).password not in repr(report)


def refused(url: str, **parts: object) -> tuple[str, str]:
    finding = one_of(url if not parts else make_url(url).set(**parts).render_as_string(hide_password=False))
    return finding.code, finding.what


def one_of(url: str):
    (finding,) = look(url, reach.check_connection)
    assert finding.severity is Severity.PROBLEM
    assert finding.cure
    return finding


def test_a_wrong_password(postgresql_url: str) -> None:
    code, what = refused(postgresql_url, password="hunter2")
    assert code == "database-password"
    assert "password authentication failed" in what
    assert "hunter2" not in what
    assert examined(make_url(postgresql_url).set(password="hunter2").render_as_string(hide_password=False)).passed == (
        "database: retention",
    )


def test_a_role_that_may_not_log_in(postgresql_url: str) -> None:
    with role(postgresql_url, "NOLOGIN") as (_, url):
        assert refused(url)[0] == "database-password"


def test_a_database_that_is_not_there(postgresql_url: str) -> None:
    assert refused(postgresql_url, database="no such one")[0] == "database-missing"


def test_no_connection_is_left(postgresql_url: str) -> None:
    with role(postgresql_url, "LOGIN CONNECTION LIMIT 0") as (_, url):
        finding = one_of(url)
    assert finding.code == "database-full"
    assert "ALTER ROLE name CONNECTION LIMIT n" in finding.cure


def test_a_server_without_tls(postgresql_url: str) -> None:
    assert refused(f"{postgresql_url}?sslmode=require")[0] == "database-tls"


def test_a_host_that_is_not_there(postgresql_url: str) -> None:
    assert refused(postgresql_url, host="nowhere.invalid")[0] == "database-host"


def test_a_server_that_is_not_there(postgresql_url: str) -> None:
    assert refused(postgresql_url, port=1)[0] == "database-away"


def test_no_tables(empty_postgresql_url: str) -> None:
    report = examined(empty_postgresql_url)
    assert [finding.code for finding in report.findings if finding.check == "tables"] == ["tables-missing"]
    assert "database: relays" in report.left_out
    assert "database: isolation" in report.passed
    assert "not-checked" not in {finding.code for finding in report.findings}


def test_tables_in_another_schema(empty_postgresql_url: str, postgresql_url: str) -> None:
    with connected(empty_postgresql_url) as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.outboxkit_outbox ()")
    finding = one(empty_postgresql_url, reach.check_tables, "tables-missing")
    assert "schema shop" in finding.what
    assert finding.commands == ("?options=-csearch_path%3Dshop",)
    with connected(postgresql_url) as connection:
        connection.execute("CREATE SCHEMA old; CREATE TABLE old.outboxkit_outbox ()")
        assert "others in old" in one(postgresql_url, reach.check_tables, "tables-twice").what
        connection.execute("DROP SCHEMA old CASCADE")


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ("UPDATE outboxkit_schema_version SET version = 0", "tables-missing", "problem"),
        ("UPDATE outboxkit_schema_version SET version = 99", "tables-newer", "note"),
        ("DELETE FROM outboxkit_schema_version", "tables-version-unknown", "problem"),
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
    finding = look(postgresql_url, reach.check_tables)[0]
    assert (finding.code, finding.severity) == (code, severity)
    with connected(postgresql_url) as connection:  # so that no other test gets this database
        connection.execute("ALTER DATABASE " + str(make_url(postgresql_url).database) + " SET work_mem = '4MB'")


def test_what_a_crash_would_lose(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        for setting, code in (("fsync", "fsync-off"), ("full_page_writes", "full-page-writes-off")):
            is_off = connection.execute(f"SHOW {setting}").fetchone() == ("off",)
            assert (code in codes(postgresql_url, durability.check_durability)) == is_off


def test_commits_that_do_not_wait_for_the_disk(postgresql_url: str) -> None:
    database = make_url(postgresql_url).database
    of_session = one(
        f"{postgresql_url}?options=-csynchronous_commit%3Doff", durability.check_durability, "synchronous-commit-off"
    )
    assert "in this session, set by: client" in of_session.what
    with connected(postgresql_url) as connection:
        connection.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
        finding = one(postgresql_url, durability.check_durability, "synchronous-commit-off")
        assert f"for database {database}" in finding.what
        connection.execute(finding.commands[0])
        assert "synchronous-commit-off" not in codes(postgresql_url, durability.check_durability)
        with role(postgresql_url) as (name, _):
            connection.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
            finding = one(postgresql_url, durability.check_durability, "synchronous-commit-off")
            assert f"for role {name}" in finding.what
            connection.execute(finding.commands[0])
            assert "synchronous-commit-off" not in codes(postgresql_url, durability.check_durability)


def test_an_unlogged_table(postgresql_url: str) -> None:
    with connected(postgresql_url) as connection:
        connection.execute("ALTER TABLE outboxkit_effect SET UNLOGGED")
        finding = one(postgresql_url, durability.check_durability, "table-unlogged")
        assert "outboxkit_effect" in finding.what
        connection.execute(finding.commands[0])
    assert "table-unlogged" not in codes(postgresql_url, durability.check_durability)


def test_sessions_of_another_isolation_triggers_or_zone(postgresql_url: str) -> None:
    database = make_url(postgresql_url).database
    strict = f"{postgresql_url}?options=-cdefault_transaction_isolation%3Dserializable"
    assert "serializable for this session" in one(strict, sessions.check_isolation, "isolation").what
    with connected(postgresql_url) as connection:
        connection.execute(f"ALTER DATABASE {database} SET timezone = 'Europe/Vienna'")
        assert "Europe/Vienna" in one(postgresql_url, sessions.check_isolation, "time-zone").what
        with role(postgresql_url) as (name, _):
            connection.execute(f"ALTER ROLE {name} SET default_transaction_isolation = 'repeatable read'")
            connection.execute(f"ALTER ROLE {name} IN DATABASE {database} SET session_replication_role = replica")
            isolation = one(postgresql_url, sessions.check_isolation, "isolation")
            triggers = one(postgresql_url, sessions.check_isolation, "triggers-off")
            assert f"for role {name}." in isolation.what
            assert f"for role {name} in database {database}." in triggers.what
            for finding in (isolation, triggers):
                connection.execute(finding.commands[0])
            assert codes(postgresql_url, sessions.check_isolation) == ["time-zone"]


def test_a_server_that_takes_no_writes(postgresql_url: str) -> None:
    url = f"{postgresql_url}?options=-cdefault_transaction_read_only%3Don"
    assert "server-read-only" in codes(url, durability.check_version)
    assert "server-read-only" not in codes(postgresql_url, durability.check_version)


def test_connections_that_are_used(postgresql_url: str) -> None:
    finding = one(postgresql_url, durability.check_version, "connections-few", thresholds=Thresholds(connections=0))
    with connected(postgresql_url) as connection:
        assert connection.execute(finding.commands[0]).fetchone()


@pytest.mark.parametrize(("off", "severity"), [(60, "warning"), (-3600, "problem")])
def test_clocks_that_differ(postgresql_url: str, off: int, severity: str) -> None:
    def clock() -> datetime:
        return utc_now() + timedelta(seconds=off)

    slow = Thresholds(skew=timedelta(seconds=20), check_seconds=60)
    finding = one(postgresql_url, sessions.check_clock, "clock-skew", clock=clock, thresholds=slow)
    assert finding.severity == severity
    assert ("behind" if off > 0 else "ahead of") in finding.what


def test_a_session_of_a_server_keeps_its_state(postgresql_url: str) -> None:
    assert codes(postgresql_url, sessions.check_pooler) == []
    assert codes(postgresql_url, sessions.check_encryption) == []


def test_autovacuum_is_off_for_the_server(own_postgresql: Server) -> None:
    from outboxkit.operators.doctor import storage

    url = own_postgresql.url
    with connected(url) as connection:
        try:
            connection.execute("ALTER SYSTEM SET autovacuum = off")
            connection.execute("SELECT pg_reload_conf()")
            found = eventually(lambda: look(url, storage.check_vacuum, thresholds=NOW))
        finally:
            connection.execute("ALTER SYSTEM RESET autovacuum")
            connection.execute("SELECT pg_reload_conf()")
    assert [finding.code for finding in found] == ["autovacuum-off"]
