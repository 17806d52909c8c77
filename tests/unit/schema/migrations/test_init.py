"""Steps, checks and the DDL as text."""

import io
from collections.abc import Iterator
from types import ModuleType

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, create_engine, delete, inspect, select, update

from outboxkit import ConfigurationError, SchemaError, metadata, schema, tables
from outboxkit.schema import migrations
from outboxkit.schema.migrations import LATEST, STEPS
from tests.support import second_step

TABLES = set(metadata.tables)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = create_engine("sqlite://")
    yield made
    made.dispose()


def operations(connection: Connection) -> Operations:
    return Operations(MigrationContext.configure(connection))


def stored_version(connection: Connection) -> list[int]:
    return list(connection.execute(select(tables.schema_version.c.version)).scalars())


def test_the_last_step_leads_to_the_version_of_the_tables():
    assert LATEST == tables.SCHEMA_VERSION == len(STEPS)
    assert sorted(STEPS) == list(range(1, LATEST + 1))
    for version, step in STEPS.items():
        assert isinstance(step, ModuleType)
        assert step.__name__.endswith(f"v{version:04}")


def test_migrate_works_once_and_then_finds_nothing_to_do(engine: Engine):
    with engine.begin() as connection:
        assert schema.installed(connection) == 0
        assert migrations.migrate(connection) == (0, LATEST)
        assert migrations.migrate(connection) == (LATEST, LATEST)
        assert schema.installed(connection) == LATEST
        schema.check(connection)


def test_migrate_leaves_newer_tables_alone(engine: Engine):
    with engine.begin() as connection:
        migrations.migrate(connection)
        connection.execute(update(tables.schema_version).values(version=LATEST + 3))
        assert migrations.migrate(connection) == (LATEST + 3, LATEST + 3)
        schema.check(connection)


def test_migrate_is_part_of_the_callers_transaction(empty_engine: Engine):
    with empty_engine.connect() as connection:
        migrations.migrate(connection)
        connection.rollback()
        assert schema.installed(connection) == 0


def test_one_line_in_a_revision_of_ones_own(engine: Engine):
    with engine.begin() as connection:
        migrations.upgrade(operations(connection), to=LATEST)
        assert set(inspect(connection).get_table_names()) == TABLES
        assert stored_version(connection) == [LATEST]
        migrations.downgrade(operations(connection), since=LATEST, to=0)
        assert inspect(connection).get_table_names() == []
        migrations.upgrade(operations(connection), to=LATEST)
        schema.check(connection)


def test_no_step_is_no_change(engine: Engine):
    with engine.begin() as connection:
        migrations.upgrade(operations(connection), since=LATEST, to=LATEST)
        migrations.downgrade(operations(connection), since=0, to=0)
        assert inspect(connection).get_table_names() == []


@pytest.mark.parametrize(("since", "to"), [(0, LATEST + 1), (-1, 1), (1, 0)])
def test_steps_that_do_not_exist_are_refused(engine: Engine, since: int, to: int):
    with engine.begin() as connection:
        with pytest.raises(ConfigurationError, match=f"no steps from version {since} to {to}; versions 0 to {LATEST}"):
            migrations.upgrade(operations(connection), since=since, to=to)
        with pytest.raises(ConfigurationError, match="no steps"):
            migrations.downgrade(operations(connection), since=to, to=since)
        assert inspect(connection).get_table_names() == []


def test_tables_of_autogenerate_without_a_version_are_explained(engine: Engine):
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(delete(tables.schema_version))
        for ask in (schema.check, schema.installed, migrations.migrate):
            with pytest.raises(SchemaError, match=f"is empty.*autogenerate.*upgrade\\(op, to={LATEST}\\)"):
                ask(connection)


def test_the_ddl_ends_with_the_version_that_it_leads_to(monkeypatch: pytest.MonkeyPatch):
    second_step.register(monkeypatch)
    output = io.StringIO()
    migrations.write_sql("postgresql", output)
    assert "INSERT INTO outboxkit_schema_version (version) VALUES (1)" in output.getvalue()
    assert output.getvalue().rstrip().endswith("UPDATE outboxkit_schema_version SET version=2;\n\nCOMMIT;")
