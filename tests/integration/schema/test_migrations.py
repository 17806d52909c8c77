"""The tables: however they come into being they are the same, and any number of processes may create them at once."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, text

from outboxkit import metadata, schema
from outboxkit.runtime import urls
from outboxkit.schema import migrations
from tests.processes import COMMAND, run_to_end
from tests.support import second_step


@pytest.fixture(params=["postgresql", "sqlite"])
def empty_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "postgresql":
        url = request.getfixturevalue("empty_postgresql_url")
    else:
        url = f"sqlite:///{tmp_path / 'empty.db'}"
    made = create_engine(url)
    yield made
    made.dispose()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_of_five_processes_one_migrates(empty_postgresql_url: str, isolation: str):
    engine = create_engine(empty_postgresql_url)
    with engine.begin() as connection:
        connection.execute(
            text(f"ALTER DATABASE {engine.url.database} SET default_transaction_isolation = '{isolation}'")
        )
    engine.dispose()
    command = [COMMAND, "migrate", "--database-url", empty_postgresql_url]
    with ThreadPoolExecutor(5) as pool:
        ended = list(pool.map(lambda _: run_to_end(command, {}), range(5)))
    assert [process.returncode for process in ended] == [0] * 5, [process.stderr for process in ended]
    said = sorted(process.stdout for process in ended)
    now, where = migrations.LATEST, urls.shown(empty_postgresql_url)
    assert said == [
        f"outboxkit tables: migrated from version 0 to {now} in {where}\n",
        *[f"outboxkit tables: up to date at version {now} in {where}\n"] * 4,
    ]


def test_several_at_once_migrate_a_sqlite_file(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'new.db'}"
    command = [COMMAND, "migrate", "--database-url", url]
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda _: run_to_end(command, {}), range(4)))
    assert [process.returncode for process in ended] == [0] * 4, [process.stderr for process in ended]


def test_all_steps_make_what_the_metadata_says(empty_engine: Engine):
    with empty_engine.begin() as connection:
        assert migrations.migrate(connection) == (0, migrations.LATEST)
        schema.check(connection)
        # Alembic finds a difference in every Identity() on SQLite, which has none, where it compares defaults.
        defaults = connection.dialect.name == "postgresql"
        context = MigrationContext.configure(
            connection, opts={"compare_server_default": defaults, "target_metadata": metadata}
        )
        assert compare_metadata(context, metadata) == []


def test_all_steps_make_what_create_all_makes(empty_engine: Engine):
    with empty_engine.begin() as connection:
        migrations.migrate(connection)
        by_steps = described(connection)
        downgrade(connection, to=0)
        assert inspect(connection).get_table_names() == []
        metadata.create_all(connection)
        assert described(connection) == by_steps
        schema.check(connection)


def test_a_later_step_makes_what_create_all_makes_then(empty_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    with empty_engine.begin() as connection:
        migrations.migrate(connection)
        first = described(connection)
        newest = second_step.register(monkeypatch)
        assert migrations.migrate(connection) == (1, 2)
        second = described(connection)
        downgrade(connection, to=1)
        assert described(connection) == first
        downgrade(connection, to=0, since=1)
        newest.create_all(connection)
        assert described(connection) == second


def test_every_row_outlives_a_later_step_and_the_way_back(empty_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    with empty_engine.begin() as connection:
        migrations.migrate(connection)
        fill(connection)
        rows = contents(connection)
        second_step.register(monkeypatch)
        migrations.migrate(connection)
        labels = connection.scalars(text("SELECT label FROM outboxkit_dead_letter")).all()
        assert labels == ["none"]
        fill(connection)  # as a process of version 1 does, which goes on
        downgrade(connection, to=1)
        found = contents(connection)
        assert {name: len(row) for name, row in found.items()} == {name: 2 * len(row) for name, row in rows.items()}
        assert all(row in found[name] for name in rows for row in rows[name])


def test_nothing_is_left_when_the_tables_are_dropped(empty_engine: Engine):
    with empty_engine.begin() as connection:
        for make in (metadata.create_all, migrations.migrate):
            make(connection)
            metadata.drop_all(connection)
            assert left_over(connection) == []
        migrations.migrate(connection)
        downgrade(connection, to=0)
        assert left_over(connection) == []


def test_autogenerate_leaves_the_partitions_alone(empty_postgresql_url: str):
    engine = create_engine(empty_postgresql_url)
    with engine.begin() as connection:
        migrations.migrate(connection)
        connection.execute(
            text(
                "CREATE TABLE outboxkit_published_20260301 PARTITION OF outboxkit_published "
                "FOR VALUES FROM ('2026-03-01') TO ('2026-03-02')"
            )
        )
        connection.execute(
            text(
                "CREATE TABLE outboxkit_inbox_20260301 PARTITION OF outboxkit_inbox "
                "FOR VALUES FROM ('019ca6b1-dc00') TO ('019cabd8-3800')"
            )
        )
        connection.execute(text("CREATE TABLE orders (id integer)"))
        for wanted in (metadata, [metadata, MetaData()]):
            found = compare_metadata(MigrationContext.configure(connection), wanted)
            assert [(change[0], change[1].name) for change in found] == [("remove_table", "orders")]
    engine.dispose()


def test_the_printed_ddl_makes_the_same_tables(empty_engine: Engine):
    with empty_engine.begin() as connection:
        migrations.migrate(connection)
        by_steps = described(connection)
        downgrade(connection, to=0)
    printed = run_to_end([COMMAND, "migrate", "--sql"], {"OUTBOXKIT_DATABASE_URL": url_of(empty_engine)})
    assert (printed.returncode, printed.stderr) == (0, "")
    feed(empty_engine, printed.stdout)
    with empty_engine.connect() as connection:
        assert described(connection) == by_steps
        schema.check(connection)


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def left_over(connection: Connection) -> list[Any]:
    """Tables and functions in the database."""
    found: list[Any] = list(inspect(connection).get_table_names())
    if connection.dialect.name == "postgresql":
        found += connection.scalars(text("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"))
    return found


def downgrade(connection: Connection, *, to: int, since: int | None = None) -> None:
    operations = Operations(MigrationContext.configure(connection))
    migrations.downgrade(operations, to=to, since=migrations.LATEST if since is None else since)


def fill(connection: Connection) -> None:
    """A row of each table that holds messages; in the inbox one of its own, whose ids are unique."""
    names, message = "message_id, type, payload, headers, content_type", "'m', 'T', '', '', 'application/json'"
    connection.execute(text(f"INSERT INTO outboxkit_outbox ({names}) VALUES ({message})"))
    dead = f"INSERT INTO outboxkit_dead_letter ({names}, side, reason, attempts)"
    connection.execute(text(f"{dead} VALUES ({message}, 'inbox', 'failed', 10)"))
    position = len(contents(connection)["outboxkit_published"])
    keep = f"INSERT INTO outboxkit_published ({names}, published_at, position)"
    connection.execute(text(f"{keep} VALUES ({message}, CURRENT_TIMESTAMP, {position})"))
    handled = "INSERT INTO outboxkit_inbox (handler, message_id, type)"
    connection.execute(text(f"{handled} VALUES ('H', 'm{position}', 'T')"))


def contents(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name} ORDER BY 1"))]
        for name in ("outboxkit_outbox", "outboxkit_inbox", "outboxkit_dead_letter", "outboxkit_published")
    }


def feed(engine: Engine, ddl: str) -> None:
    """Run a script in one piece, as a database administrator does."""
    driver = engine.raw_connection()
    try:
        if engine.dialect.name == "sqlite":
            driver.driver_connection.executescript(ddl)
        else:
            driver.driver_connection.execute(ddl)
        driver.commit()
    finally:
        driver.close()


def described(connection: Connection) -> dict[str, Any]:
    """Everything that the database itself says about the tables, and their version."""
    if connection.dialect.name == "sqlite":
        asked = {"definitions": "SELECT sql FROM sqlite_master ORDER BY name"}
    else:
        asked = {
            "columns": "SELECT to_jsonb(columns) - 'table_catalog' - 'udt_catalog' FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY table_name, ordinal_position",
            "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname",
            "constraints": "SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace ORDER BY 1",
            "tables": "SELECT concat(relname, ' ', relkind, relpersistence) || coalesce(pg_get_partkeydef(oid), '') || "
            "coalesce(pg_get_expr(relpartbound, oid), '') FROM pg_class "
            "WHERE relnamespace = 'public'::regnamespace ORDER BY relname",
            "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc "
            "WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
            "triggers": "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
            "comments": "SELECT description FROM pg_description WHERE objoid IN "
            "(SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace) ORDER BY 1",
        }
    asked["version"] = "SELECT version FROM outboxkit_schema_version"
    found = {name: list(connection.scalars(text(query))) for name, query in asked.items()}
    assert all(found.values()), found
    # SQLite keeps a table's definition as it was written, and Alembic prints it with other spaces.
    found["definitions"] = [re.sub(r"\s*([ (),])\s*", r"\1", sql) for sql in found.get("definitions", []) if sql]
    return found
