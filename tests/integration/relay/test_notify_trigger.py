"""The trigger by which an insert notifies: only while a relay listens, whoever inserts, and never at its cost."""

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.databases import migrate
from tests.support.pages import libpq
from tests.support.polling import DEADLINE_SECONDS

INSERT = (
    "INSERT INTO {}outboxkit_outbox (message_id, type, payload, headers, content_type) VALUES ('m', 'T', '', '', '')"
)
REGISTER = "INSERT INTO {}outboxkit_listener VALUES ('relay', clock_timestamp() + interval '{}')"

Connection = psycopg.Connection[Any]


@pytest.fixture
def ear(postgresql_url: str) -> Iterator[Connection]:
    """A connection that hears what is notified about the outbox."""
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        listen(connection)
        yield connection


@pytest.fixture
def writer(postgresql_url: str) -> Iterator[Connection]:
    """A connection of an application."""
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        yield connection


def listen(connection: Connection) -> None:
    (channel,) = connection.execute("SELECT 'outboxkit_' || 'outboxkit_outbox'::regclass::oid").fetchone() or ("",)
    connection.execute(f'LISTEN "{channel}"; LISTEN the_end')


def heard(ear: Connection, writer: Connection) -> int:
    """How many notifications came. They arrive in the order of the commits: behind the last one is nothing."""
    writer.execute("NOTIFY the_end")
    for count, notification in enumerate(ear.notifies(timeout=DEADLINE_SECONDS)):
        if notification.channel == "the_end":
            return count
    raise AssertionError("notifications do not arrive")


def test_nothing_is_notified_while_nobody_listens(ear: Connection, writer: Connection):
    for _ in range(3):
        writer.execute(INSERT.format(""))
    assert heard(ear, writer) == 0


def test_a_commit_notifies_once_while_a_relay_listens(ear: Connection, writer: Connection):
    writer.execute(REGISTER.format("", "1 hour"))
    with writer.transaction():
        for _ in range(3):
            writer.execute(INSERT.format(""))
    assert heard(ear, writer) == 1
    with writer.transaction(force_rollback=True):
        writer.execute(INSERT.format(""))
    assert heard(ear, writer) == 0


def test_nothing_is_notified_for_a_listener_that_was_killed(ear: Connection, writer: Connection):
    writer.execute(REGISTER.format("", "-1 millisecond"))
    writer.execute(INSERT.format(""))
    assert heard(ear, writer) == 0


def test_a_writer_needs_no_rights_on_the_listeners_and_no_search_path(empty_postgresql_url: str):
    role = f"writer_{secrets.token_hex(6)}"
    within = make_url(empty_postgresql_url).set(query={"options": "-csearch_path=messages"})
    with psycopg.connect(libpq(empty_postgresql_url), autocommit=True) as owner:
        owner.execute(f"CREATE SCHEMA messages; CREATE ROLE {role}; GRANT USAGE ON SCHEMA messages TO {role}")
        try:
            migrate(within.render_as_string(hide_password=False))
            owner.execute(f"GRANT INSERT ON messages.outboxkit_outbox TO {role}")
            owner.execute(REGISTER.format("messages.", "1 hour"))
            with psycopg.connect(libpq(within.render_as_string(hide_password=False)), autocommit=True) as ear:
                listen(ear)
                owner.execute(f"SET ROLE {role}; SET search_path = pg_temp")
                owner.execute("CREATE TEMP TABLE outboxkit_listener (until timestamptz)")
                owner.execute(INSERT.format("messages."))
                assert heard(ear, owner) == 1
        finally:
            owner.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_an_insert_succeeds_after_the_table_was_moved(writer: Connection):
    writer.execute(REGISTER.format("", "1 hour"))
    writer.execute("CREATE SCHEMA moved; ALTER TABLE outboxkit_outbox SET SCHEMA moved; SET search_path = moved")
    writer.execute(INSERT.format(""))
    assert writer.execute("SELECT count(*) FROM outboxkit_outbox").fetchone() == (1,)


def test_dead_versions_of_listeners_are_not_walked_over(postgresql_url: str, writer: Connection):
    """However long vacuum has been held back, an insert reads no more than what has been registered of late."""
    with psycopg.connect(libpq(postgresql_url)) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        writer.execute(
            "INSERT INTO outboxkit_listener SELECT i::text, now() - interval '1 day' FROM generate_series(1, 20000) i"
        )
        writer.execute("DELETE FROM outboxkit_listener")
        writer.execute("ANALYZE outboxkit_listener")  # as autovacuum does, also where it cannot remove anything
        writer.execute(INSERT.format(""))  # what is read at first, the plan for one
        before = pages_read(writer)
        for _ in range(10):
            writer.execute(INSERT.format(""))
        assert pages_read(writer) - before <= 50


def pages_read(connection: Connection) -> int:
    """Pages of the listeners' table and its indexes that have been read."""
    if connection.info.server_version < 150_000:
        pytest.skip("before PostgreSQL 15 nobody can ask for these figures at once")
    connection.execute("SELECT pg_stat_force_next_flush()")
    found = connection.execute(
        "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM pg_statio_user_tables "
        "WHERE relname = 'outboxkit_listener'"
    ).fetchone()
    return int(found[0]) if found else -1
