"""Messages survive the steps: old tables with rows in them become new ones, and go back."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, Select, create_engine, func, insert, inspect, select, text, update

from outboxkit import ids, metadata, migrations, tables


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database without any table."""
    if request.param == "postgresql":
        url = request.getfixturevalue("empty_postgresql_url")
    else:
        url = f"sqlite:///{tmp_path / 'empty.db'}"
    made = create_engine(url)
    yield made
    made.dispose()


def test_rows_of_version_1_are_all_there_in_the_newest(engine: Engine):
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=1)
        fill_version_1(connection)
        old = contents(connection)
        assert migrations.migrate(connection) == (1, migrations.LATEST)

        assert {name: [row[: len(old[name][0])] for row in rows] for name, rows in contents(connection).items()} == old
        outbox = metadata.tables["outboxkit_outbox"]
        held = connection.execute(select(outbox.c.message_id, outbox.c.held).order_by(outbox.c.position)).all()
        assert held == [("ready", False), ("delayed", False), ("retried", True)]
        dead_letter = metadata.tables["outboxkit_dead_letter"]
        assert connection.scalars(select(dead_letter.c.message_id).where(dead_letter.c.resolution.is_(None))).all() == [
            "dead"
        ]


def test_back_to_version_1_with_everything_in_the_tables(engine: Engine):
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=1)
        fill_version_1(connection)
        described_1, old = described(connection), contents(connection)
        migrations.upgrade(operations, since=1, to=2)
        outbox = metadata.tables["outboxkit_outbox"]
        connection.execute(
            update(outbox).where(outbox.c.message_id == "ready").values(held=True, due_at=tables.PARKED, dedup=True)
        )
        connection.execute(insert(metadata.tables["outboxkit_published"]).from_select(*kept()))
        migrations.downgrade(operations, since=2, to=1)

        assert described(connection) == described_1
        found = contents(connection)
        assert [row[:2] for row in found["outboxkit_outbox"]] == [row[:2] for row in old["outboxkit_outbox"]]
        assert found["outboxkit_dead_letter"] == old["outboxkit_dead_letter"]
        due = connection.scalars(text("SELECT message_id FROM outboxkit_outbox WHERE due_at IS NULL ORDER BY 1")).all()
        assert due == ["ready", "retried"]  # both were held: a relay of version 1 does not know that they wait


IDS = ("order-7", ids.new(), ids.new(at=datetime(2026, 3, 1, tzinfo=UTC)))


def test_the_inbox_is_divided_and_put_together_again(engine: Engine):
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=2)
        process(connection, *IDS)
        before, described_2 = inbox_of(connection), described(connection, "outboxkit_inbox")
        migrations.upgrade(operations, since=2, to=3)
        assert inbox_of(connection) == before
        assert connection.execute(text("SELECT DISTINCT attempts, duration_ms FROM outboxkit_inbox")).all() == [
            (1, None)
        ]
        if engine.dialect.name == "postgresql":
            assert constraints(connection) == {"outboxkit_inbox_pkey", "outboxkit_inbox_default_pkey"}
            connection.execute(
                text(
                    "CREATE TABLE outboxkit_inbox_20270101 PARTITION OF outboxkit_inbox FOR VALUES FROM ('a') TO ('b')"
                )
            )
        process(connection, "a-later-one")
        migrations.downgrade(operations, since=3, to=2)
        assert {row[1] for row in inbox_of(connection)} == {*IDS, "a-later-one"}
        assert described(connection, "outboxkit_inbox") == described_2
        assert inspect(connection).get_pk_constraint("outboxkit_inbox")["constrained_columns"] == [
            "handler",
            "message_id",
        ]
        migrations.upgrade(operations, since=2, to=3)
        assert len(inbox_of(connection)) == 4


def test_no_row_of_the_inbox_is_copied_and_its_rights_stay(empty_postgresql_url: str):
    role = f"consumer_{empty_postgresql_url.rpartition('_')[2]}"
    engine = create_engine(empty_postgresql_url)
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=2)
        named = "ALTER TABLE outboxkit_inbox RENAME CONSTRAINT outboxkit_inbox_pkey TO pk_of_a_naming_convention"
        for statement in (named, f"CREATE ROLE {role}", f"GRANT SELECT, INSERT ON outboxkit_inbox TO {role}"):
            connection.execute(text(statement))
        process(connection, *IDS)
        file = connection.scalar(text("SELECT pg_relation_filenode('outboxkit_inbox')"))
        migrations.upgrade(operations, since=2, to=3)
        assert connection.scalar(text("SELECT pg_relation_filenode('outboxkit_inbox_default')")) == file
        connection.execute(text(f"SET LOCAL ROLE {role}"))
        process(connection, "as-consumer")
        assert len(inbox_of(connection)) == 4
        connection.execute(text("RESET ROLE"))
        connection.execute(text(f"DROP OWNED BY {role}; DROP ROLE {role}"))
    engine.dispose()


MESSAGES = ("outboxkit_outbox", "outboxkit_dead_letter", "outboxkit_published")
DAY = """
CREATE TABLE outboxkit_published_20260301 PARTITION OF outboxkit_published
FOR VALUES FROM ('2026-03-01 UTC') TO ('2026-03-02 UTC')
"""


def test_messages_of_version_3_go_where_they_went(engine: Engine):
    """Every row of the three tables is there as it was, in its partition, and goes to the destination `default`."""
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=3)
        fill_version_3(connection)
        old, described_3 = messages(connection), described(connection, *MESSAGES)
        migrations.upgrade(operations, since=3, to=4)
        assert {name: [row[:-2] for row in rows] for name, rows in messages(connection).items()} == old
        assert {row[-2:] for rows in messages(connection).values() for row in rows} == {("default", None)}
        connection.execute(insert(metadata.tables["outboxkit_idempotency"]).values(request()))
        connection.execute(insert(metadata.tables["outboxkit_effect"]).values(started()))
        connection.execute(text("UPDATE outboxkit_outbox SET destination = 'payments', reply = 'CardCharged'"))
        migrations.downgrade(operations, since=4, to=3)
        assert messages(connection) == old
        assert described(connection, *MESSAGES) == described_3
        assert not {"outboxkit_idempotency", "outboxkit_effect"} & set(inspect(connection).get_table_names())
        migrations.upgrade(operations, since=3, to=4)
        assert {row[-2:] for rows in messages(connection).values() for row in rows} == {("default", None)}


def test_no_row_is_rewritten_for_the_new_columns(empty_postgresql_url: str):
    """Whoever holds the lock meanwhile holds it for the indexes of the outbox alone, which is nearly empty."""
    engine = create_engine(empty_postgresql_url)
    asked = text("SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname ~ 'published|dead_letter'")
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=3)
        fill_version_3(connection)
        files = set(map(tuple, connection.execute(asked)))
        migrations.upgrade(operations, since=3, to=4)
        assert set(map(tuple, connection.execute(asked))) == files
    engine.dispose()


def test_a_relay_of_version_3_goes_on_with_the_new_tables(engine: Engine):
    """It names the columns that it knows; what it moves gets the destination that it has."""
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=3)
        fill_version_3(connection)
        migrations.upgrade(operations, since=3, to=4)
        connection.execute(insert(metadata.tables["outboxkit_published"]).from_select(*kept()))
        rows = connection.execute(text("SELECT destination FROM outboxkit_published")).scalars().all()
        assert set(rows) == {"default"}
        assert len(rows) == 4


def test_dead_letters_of_version_4_stay_and_its_consumers_go_on(engine: Engine):
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        migrations.upgrade(operations, to=3)
        fill_version_3(connection)
        migrations.upgrade(operations, since=3, to=4)
        old, described_4 = messages(connection), described(connection, *MESSAGES)
        migrations.upgrade(operations, since=4, to=5)
        give_up = "INSERT INTO outboxkit_dead_letter (side, payload, headers, content_type, reason, attempts) "
        connection.execute(
            text(give_up + "SELECT 'inbox', payload, headers, content_type, 'failed', 10 FROM outboxkit_outbox")
        )
        assert connection.scalars(text("SELECT traceback FROM outboxkit_dead_letter")).all() == [None] * 3
        connection.execute(text("DELETE FROM outboxkit_dead_letter WHERE side = 'inbox'"))
        connection.execute(insert(metadata.tables["outboxkit_handler"]).values(handler="H", queue="q"))
        migrations.downgrade(operations, since=5, to=4)
        assert (messages(connection), described(connection, *MESSAGES)) == (old, described_4)


def process(connection: Connection, *messages: str) -> None:
    """As a consumer of any version has done."""
    statement = text("INSERT INTO outboxkit_inbox (handler, message_id, type) VALUES ('H', :id, 'T')")
    connection.execute(statement, [{"id": id_} for id_ in messages])


def inbox_of(connection: Connection) -> list[Any]:
    columns = "handler, message_id, type, processed_at"
    return sorted(connection.execute(text(f"SELECT {columns} FROM outboxkit_inbox")).all())


def constraints(connection: Connection) -> set[str]:
    named = "SELECT conname FROM pg_constraint WHERE conrelid::regclass::text LIKE 'outboxkit_inbox%'"
    return set(connection.scalars(text(named)))


def fill_version_1(connection: Connection) -> None:
    """A row of each kind that a database of version 1 can hold."""
    message = "'T', :payload, :payload, 'application/json'"
    columns = "message_id, type, payload, headers, content_type"
    for values in ("'ready', {}, NULL, 0", "'delayed', {}, :due, 0", "'retried', {}, :due, 3"):
        connection.execute(
            text(f"INSERT INTO outboxkit_outbox ({columns}, due_at, attempts) VALUES ({values.format(message)})"),
            {"payload": b"{}"} | ({"due": "2030-01-01 00:00:00+00"} if ":due" in values else {}),
        )
    connection.execute(
        text(
            f"INSERT INTO outboxkit_dead_letter ({columns}, side, reason, attempts) "
            f"VALUES ('dead', {message}, 'inbox', 'failed', 10)"
        ),
        {"payload": b"{}"},
    )
    connection.execute(text("INSERT INTO outboxkit_inbox (handler, message_id, type) VALUES ('h', 'm', 'T')"))


def fill_version_3(connection: Connection) -> None:
    """Rows of every table that holds messages: waiting, held, parked and dead; kept inside a day and outside."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(DAY))
    names = "message_id, type, payload, headers, content_type"
    given = {"payload": b"\xff", "headers": b"{}", "parked": "9999-12-31 00:00:00+00"}
    row = "'T', :payload, :headers, 'application/json'"
    put = f"INSERT INTO outboxkit_outbox ({names}, key, due_at, held) VALUES"
    dead = f"INSERT INTO outboxkit_dead_letter ({names}, key, side, reason, attempts, position, parked) VALUES"
    keep = f"INSERT INTO outboxkit_published ({names}, published_at, position) VALUES"
    for statement in (
        f"{put} ('ready', {row}, NULL, NULL, false)",
        f"{put} ('parked', {row}, 'k', :parked, true)",
        f"{dead} ('dead', {row}, 'k', 'outbox', 'rejected', 10, 1, true)",
        f"{keep} ('in its day', {row}, '2026-03-01 12:00:00+00', 1)",
        f"{keep} ('in none', {row}, '2026-01-01 12:00:00+00', 2)",
    ):
        connection.execute(text(statement), {name: value for name, value in given.items() if f":{name}" in statement})


def messages(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the tables that hold messages, and on PostgreSQL of the partition of a day."""
    names = [*MESSAGES, *(["outboxkit_published_20260301"] if connection.dialect.name == "postgresql" else [])]
    return {
        name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name} ORDER BY 1"))] for name in names
    }


def request() -> dict[str, Any]:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    known = {"scope": "POST /orders", "principal": "", "key": "k", "fingerprint": b"f", "state": "done", "token": "t"}
    return known | {"created_at": now, "expires_at": now}


def started() -> dict[str, Any]:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    return {"key": "k", "state": "started", "token": "t", "started_at": now, "locked_until": now}


def contents(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the tables that version 1 has."""
    return {
        name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name} ORDER BY 1"))]
        for name in ("outboxkit_outbox", "outboxkit_inbox", "outboxkit_dead_letter")
    }


def kept() -> tuple[list[str], Select[Any]]:
    """What moves the outbox's rows to those that were published."""
    outbox = metadata.tables["outboxkit_outbox"]
    new = {"published_at", "destination", "reply"}
    names = [column.name for column in metadata.tables["outboxkit_published"].columns if column.name not in new]
    return ["published_at", *names], select(func.current_timestamp(), *(outbox.c[name] for name in names))


def described(connection: Connection, *names: str) -> list[Any]:
    """The columns and indexes of the outbox and the dead letters, or of these tables."""
    found = inspect(connection)
    return [
        described
        for name in (names or ("outboxkit_outbox", "outboxkit_dead_letter"))
        for described in (
            *(column | {"type": str(column["type"])} for column in found.get_columns(name)),
            *sorted((str(index["name"]), index["column_names"]) for index in found.get_indexes(name)),
        )
    ]
