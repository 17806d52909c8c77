"""`outboxkit trace` on SQLite; tests/integration/operators/test_trace.py has PostgreSQL."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from outboxkit import outbox, tables
from tests.support.databases import SqliteCopies
from tests.unit.cli.conftest import Run
from tests.unit.shop import OrderConfirmed

NOW = datetime.now(UTC)
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROW = {"type": "OrderConfirmed", "payload": b"{}", "headers": b"{}", "content_type": "x", "key": "order-1"}


def write(url: str, *rows: tuple[Any, dict[str, Any]]) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for table, row in rows:
            connection.execute(insert(table), row)
    engine.dispose()


def test_a_message_in_the_outbox(run: Run, engine: Engine, database_url: str):
    with Session(engine) as session, session.begin():
        first = outbox.add(session, OrderConfirmed(1, Decimal("9.90")), key="order-1")
        message = outbox.add(
            session, OrderConfirmed(1, Decimal("9.90")), key="order-1", headers={"traceparent": PARENT}
        )
    ended = run("trace", message.id, "--database-url", database_url)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[2:7] == [
        f"message       {message.id}",
        "type          OrderConfirmed, key order-1",
        "trace         4bf92f3577b34da6a3ce929d0e0e4736",
        "state         waiting",
        f"why           it is behind message {first.id} of its key order-1",
    ]
    assert lines[7] == f"                cure: outboxkit trace {first.id}"
    assert lines[8].startswith("timeline      2")
    of_key = run("trace", "--key", "order-1", "--database-url", database_url).out
    assert of_key.index(f"message       {first.id}") < of_key.index(f"message       {message.id}")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "none was given"),
        (("m", "--key", "k"), "2 were given"),
        (("m", "--key", "k", "--correlation", "c"), "3 were given"),
    ],
)
def test_one_thing_is_asked_for(run: Run, database_url: str, arguments: tuple[str, ...], found: str):
    ended = run("trace", *arguments, "--database-url", database_url)
    said = f"outboxkit: exactly one of a message's ID, --key and --correlation is accepted; {found}\n"
    assert (ended.code, ended.err) == (2, said)


@pytest.mark.parametrize("url", ["mysql://u:topsecret@h/d", "postgresql://u:top@secret@h/d", "topsecret"])
def test_no_secret_is_printed(run: Run, database_url: str, tmp_path: Path, url: str):
    file = tmp_path / "url"
    file.write_text(url)
    for value in (url, f"@{file}"):
        ended = run("trace", "m", "--also", value, "--database-url", database_url)
        assert ended.code == 2
        assert ended.err.startswith("outboxkit: --also cannot be used: ")
        assert "secret" not in ended.out + ended.err


def test_a_file_that_is_not_there_is_named_with_its_option(run: Run, database_url: str, tmp_path: Path):
    ended = run("trace", "m", "--database-url", database_url, "--also", f"sqlite:///{tmp_path}/none.db")
    told = f"outboxkit: --also cannot be used: there is no file '{tmp_path}/none.db'\n"
    assert (ended.code, ended.err) == (2, told)


@pytest.mark.parametrize("headers", [b"{", b"[" * 100_000, b"7"])
def test_headers_that_cannot_be_read_hide_no_message(run: Run, database_url: str, headers: bytes):
    write(
        database_url,
        (tables.published, ROW | {"message_id": "m", "position": 1, "published_at": NOW, "headers": headers}),
    )
    assert "state         published\n" in run("trace", "m", "--database-url", database_url).out


def test_a_cure_for_another_database_names_it(
    run: Run, database_url: str, migrated_sqlite: SqliteCopies, tmp_path: Path
):
    """Numbers of dead letters begin at 1 in each database."""
    consumer_url = migrated_sqlite.copy(tmp_path / "consumer.db")
    letter = ROW | {"message_id": "m", "side": "inbox", "reason": "failed", "attempts": 10, "queue": "q"}
    write(consumer_url, (tables.dead_letter, letter))
    (tmp_path / "consumer.url").write_text(consumer_url)
    ended = run("trace", "m", "--database-url", database_url, "--also", f"@{tmp_path / 'consumer.url'}")
    option = f"--database-url @{tmp_path / 'consumer.url'}"
    assert f"cure [2]: outboxkit dead show 1 {option}" in " ".join(ended.out.split())
