"""`outboxkit migrate`."""

import pytest
from sqlalchemy import create_engine, update

from outboxkit import schema, tables
from outboxkit.schema.migrations import LATEST
from tests.unit.cli.conftest import Run


def test_it_creates_the_tables_once(run: Run, empty_url: str):
    ended = run("migrate", "--database-url", empty_url)
    assert (ended.code, ended.out) == (0, f"outboxkit tables: migrated from version 0 to {LATEST} in {empty_url}\n")
    ended = run("migrate", "--database-url", empty_url)
    assert (ended.code, ended.out) == (0, f"outboxkit tables: up to date at version {LATEST} in {empty_url}\n")


def test_check_says_whether_they_are_there(run: Run, empty_url: str):
    ended = run("migrate", "--check", "--database-url", empty_url)
    assert (ended.code, ended.out) == (1, "")
    assert "tables are missing" in ended.err
    run("migrate", "--database-url", empty_url)
    ended = run("migrate", "--check", "--database-url", empty_url)
    assert (ended.code, ended.out) == (0, f"outboxkit tables: up to date at version {LATEST} in {empty_url}\n")


def test_check_finds_old_tables(run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schema, "NEEDED", LATEST + 1)
    ended = run("migrate", "--check", "--database-url", database_url)
    assert ended.code == 1
    assert f"have version {LATEST}, this code needs {LATEST + 1}" in ended.err


def test_newer_tables_are_accepted_and_named(run: Run, database_url: str):
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(update(tables.schema_version).values(version=LATEST + 1))
    engine.dispose()
    ended = run("migrate", "--check", "--database-url", database_url)
    assert (ended.code, ended.out) == (
        0,
        f"outboxkit tables: up to date at version {LATEST + 1} (newer than this code) in {database_url}\n",
    )


def test_the_sql_of_postgresql_needs_no_server(run: Run):
    ended = run("migrate", "--sql", "--database-url", "postgresql://nobody:hunter2@nowhere.invalid/x")
    assert ended.code == 0
    assert "BYTEA" in ended.out
    assert "hunter2" not in ended.out
