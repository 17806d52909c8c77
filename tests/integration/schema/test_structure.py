"""Parts of the tables that something has dropped: they are noticed, and made again where nothing is lost by it."""

from dataclasses import dataclass

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, SchemaError, event, inbox, inbox_handler, schema
from outboxkit.schema import migrations
from tests.integration.schema.test_migrations import described
from tests.unit.cli.conftest import Run, run  # noqa: F401 - a fixture

DROPPED = (
    "DROP TABLE outboxkit_inbox_default",
    "DROP TABLE outboxkit_published_default",
    "DROP TRIGGER outboxkit_notify ON outboxkit_outbox",
    "DROP INDEX outboxkit_outbox_held",
)
"""What a revision of Alembic's autogenerate did, and more."""
URL = "--database-url"


def test_what_was_dropped_is_told_and_made_again(pg_engine: Engine, postgresql_url: str, run: Run):  # noqa: F811
    with pg_engine.begin() as connection:
        before = described(connection)
        for statement in DROPPED:
            connection.execute(text(statement))
    ended = run("migrate", "--check", URL, postgresql_url)
    assert (ended.code, ended.out) == (1, "")
    assert "the default partition of outboxkit_inbox, the default partition of outboxkit_published" in ended.err
    assert "run `outboxkit migrate`" in ended.err
    ended = run("status", URL, postgresql_url)
    assert (ended.code, ended.err) == (0, "")
    assert "outbox        0 pending" in ended.out.splitlines()
    (line,) = " ".join(ended.out.split()).split("advice ")[1:]
    for part in ("the default partition of outboxkit_inbox", "index outboxkit_outbox_held", "trigger outboxkit_notify"):
        assert part in line
    assert "outboxkit migrate" in line
    with pg_engine.connect() as connection, pytest.raises(SchemaError, match="default partition of outboxkit_inbox"):
        schema.check(connection)
    repaired = run("migrate", URL, postgresql_url)
    assert repaired.code == 0
    assert repaired.out.splitlines()[1:] == [
        "made again: the default partition of outboxkit_inbox",
        "made again: the default partition of outboxkit_published",
        "made again: index outboxkit_outbox_held of outboxkit_outbox",
        "made again: index outboxkit_inbox_processed of outboxkit_inbox_default",
        "made again: trigger outboxkit_notify of outboxkit_outbox",
    ]
    assert run("migrate", "--check", URL, postgresql_url).code == 0
    with pg_engine.connect() as connection:
        assert described(connection) == before
    assert handle(pg_engine) is Outcome.PROCESSED


def test_a_detached_partition_comes_back_with_its_rows(pg_engine: Engine):
    assert handle(pg_engine) is Outcome.PROCESSED
    with pg_engine.begin() as connection:
        connection.execute(text("ALTER TABLE outboxkit_inbox DETACH PARTITION outboxkit_inbox_default"))
        assert migrations.repair(connection) == ["the default partition of outboxkit_inbox"]
        assert migrations.repair(connection) == []
    assert handle(pg_engine) is Outcome.DUPLICATE


def test_a_partition_is_made_again_beside_another_copy_of_the_tables(pg_engine: Engine):
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA messaging"))
        connection.execute(text("SET LOCAL search_path = messaging"))
        migrations.migrate(connection)
        connection.execute(text("SET LOCAL search_path = messaging, public"))
        connection.execute(text("DROP TABLE outboxkit_inbox_default"))
        assert "the default partition of outboxkit_inbox" in migrations.repair(connection)
        assert migrations.repair(connection) == []
        tables = "SELECT schemaname FROM pg_tables WHERE tablename = 'outboxkit_inbox_default' ORDER BY 1"
        assert connection.execute(text(tables)).scalars().all() == ["messaging", "public"]


def test_a_worker_starts_without_an_index_and_not_without_a_column(engine: Engine):
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX outboxkit_outbox_held"))
        schema.check(connection)
        for drop in (
            "ALTER TABLE outboxkit_dead_letter DROP COLUMN traceback",
            "DROP TABLE outboxkit_handler",
        ):
            connection.execute(text(drop))
            for ask in (schema.check, schema.check_parts, migrations.repair):
                assert_lost(connection, ask)
        connection.execute(text("UPDATE outboxkit_schema_version SET version = 99"))
        schema.check(connection)


def assert_lost(connection: Connection, ask: object) -> None:
    with pytest.raises(SchemaError, match=r"column outboxkit_dead_letter\.traceback.*restore it from a backup"):
        ask(connection)


@event("Done")
@dataclass
class Done:
    pass


@inbox_handler("DoNothing")
def do_nothing(session: Session, event: Done) -> None:
    pass


def handle(engine: Engine) -> Outcome:
    with Session(engine) as session, session.begin():
        return inbox.run_once(session, Message("not a uuid", "Done", b"{}"), do_nothing)
