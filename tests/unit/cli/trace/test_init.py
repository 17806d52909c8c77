"""`outboxkit trace` on SQLite; tests/integration/test_trace.py has PostgreSQL."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from outboxkit import ids, outbox, tables
from outboxkit.urls import shown
from tests.databases import SqliteCopies
from tests.unit.cli.conftest import Run
from tests.unit.shop import OrderConfirmed

NOW = datetime.now(UTC)
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROW = {"type": "OrderConfirmed", "payload": b"{}", "headers": b"{}", "content_type": "x", "key": "order-1"}


@pytest.fixture
def also_url(tmp_path: Path, migrated_sqlite: SqliteCopies) -> str:
    """The database of a second service."""
    return migrated_sqlite.copy(tmp_path / "billing.db")


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


def test_two_services_and_a_tree(run: Run, database_url: str, also_url: str, tmp_path: Path):
    parent, child, grandchild = ids.new(), ids.new(), ids.new()
    story = {"correlation_id": parent}
    write(database_url, (tables.published, ROW | {"published_at": NOW, "position": 1, "message_id": parent}))
    write(
        also_url,
        (tables.inbox, {"handler": "Charge", "message_id": parent, "type": "OrderConfirmed"}),
        (tables.outbox, ROW | story | {"message_id": child, "causation_id": parent, "type": "Charged"}),
        (tables.dead_letter, ROW | story | {"message_id": grandchild, "causation_id": child, "type": "Booked"}
         | {"side": "inbox", "queue": "q", "handler": "Book", "reason": "failed", "error": "no", "attempts": 10}),
    )  # fmt: skip
    file = tmp_path / "billing.url"
    file.write_text(also_url)
    ended = run("trace", parent, "--also-file", str(file), "--database-url", database_url)
    assert ended.code == 0
    assert "why           Charge handled it at" in ended.out
    assert ended.out.startswith(f"database [1]  {database_url}\ndatabase [2]  {also_url}\n")
    assert "  published to the broker [1]\n" in ended.out
    assert f"caused        └─ Charged {child}: waiting\n                 └─ Booked {grandchild}: dead\n" in ended.out
    document = json.loads(
        run("trace", "--correlation", parent, "--also", also_url, "--json", "--database-url", database_url).out
    )
    (message,) = document["messages"]
    assert (message["message_id"], message["state"], document["databases"]) == (
        parent,
        "handled",
        [database_url, also_url],
    )
    assert message["caused"] == [
        {
            "message_id": child,
            "type": "Charged",
            "state": "waiting",
            "caused": [{"message_id": grandchild, "type": "Booked", "state": "dead", "caused": []}],
        }
    ]


def test_nothing_is_known(run: Run, database_url: str):
    ended = run("trace", "m-1", "--database-url", database_url)
    assert ended.code == 1
    assert "found         nothing is known of message id m-1\n" in ended.out
    assert "OUTBOXKIT_PUBLISHED_RETENTION" in ended.out
    document = json.loads(run("trace", "--key", "k", "--json", "--database-url", database_url).out)
    assert (document["asked"], document["messages"]) == ({"key": "k"}, [])


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
    for option, value in (("--also", url), ("--also-file", str(file))):
        ended = run("trace", "m", option, value, "--database-url", database_url)
        assert ended.code == 2
        assert ended.err.startswith(f"outboxkit: {option} cannot be used: ")
        assert "secret" not in ended.out + ended.err


def test_the_time_for_a_search_is_a_duration(run: Run, database_url: str):
    ended = run("trace", "m", "--search", "long", "--database-url", database_url)
    assert ended.code == 2
    assert ended.err.startswith("outboxkit: --search is 'long': a duration such as")


def test_a_circle_of_causes_ends(run: Run, database_url: str):
    for name, cause in (("a", "b"), ("b", "a")):
        row = ROW | {"message_id": name, "causation_id": cause, "published_at": NOW, "position": ord(name)}
        write(database_url, (tables.published, row))
    ended = run("trace", "a", "--database-url", database_url)
    assert "caused        └─ OrderConfirmed b: published\n" in ended.out


def test_an_error_names_its_database(run: Run, database_url: str, empty_url: str):
    Path(empty_url.removeprefix("sqlite:///")).touch()
    ended = run("trace", "m", "--database-url", database_url, "--also", empty_url)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"outboxkit: {shown(empty_url)}: the outboxkit tables are missing")
