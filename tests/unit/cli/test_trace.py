"""`outboxkit trace` on SQLite; tests/integration/operators/test_trace.py has PostgreSQL."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from outboxkit import ids, outbox, tables
from outboxkit.operators.trace import message, reading
from outboxkit.runtime.urls import shown
from tests.support.databases import SqliteCopies
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


def test_two_services(run: Run, database_url: str, also_url: str, tmp_path: Path):
    parent, child, grandchild = ids.new(), ids.new(), ids.new()
    story = {"correlation_id": parent}
    write(
        database_url, (tables.published, ROW | {"published_at": datetime.now(UTC), "position": 1, "message_id": parent})
    )
    write(
        also_url,
        (tables.inbox, {"handler": "Charge", "message_id": parent, "type": "OrderConfirmed"}),
        (tables.outbox, ROW | story | {"message_id": child, "causation_id": parent, "type": "Charged"}),
        (tables.dead_letter, ROW | story | {"message_id": grandchild, "causation_id": child, "type": "Booked"}
         | {"side": "inbox", "queue": "q", "handler": "Book", "reason": "failed", "error": "no", "attempts": 10}),
    )  # fmt: skip
    file = tmp_path / "billing.url"
    file.write_text(also_url)
    ended = run("trace", parent, "--also", f"@{file}", "--database-url", database_url)
    assert ended.code == 0
    assert "why           Charge handled it at" in ended.out
    assert ended.out.startswith(f"database [1]  {database_url}\ndatabase [2]  {also_url}\n")
    assert "  published to the broker [1]\n" in ended.out
    assert f"caused        Charged {child}: waiting\n" in ended.out
    document = json.loads(
        run("trace", "--correlation", parent, "--also", also_url, "--json", "--database-url", database_url).out
    )
    assert [each["message_id"] for each in document["messages"]] == [parent, child, grandchild]
    assert [each["state"] for each in document["messages"]] == ["handled", "waiting", "dead"]
    assert document["databases"] == [database_url, also_url]
    assert document["messages"][0]["caused"] == [{"message_id": child, "type": "Charged", "state": "waiting"}]


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
    for value in (url, f"@{file}"):
        ended = run("trace", "m", "--also", value, "--database-url", database_url)
        assert ended.code == 2
        assert ended.err.startswith("outboxkit: --also cannot be used: ")
        assert "secret" not in ended.out + ended.err


def test_a_circle_of_causes_ends(run: Run, database_url: str):
    for name, cause in (("a", "b"), ("b", "a")):
        row = ROW | {"message_id": name, "causation_id": cause, "published_at": NOW, "position": ord(name)}
        write(database_url, (tables.published, row))
    ended = run("trace", "a", "--database-url", database_url)
    assert "caused        OrderConfirmed b: published\n" in ended.out


def test_an_error_names_its_database(run: Run, database_url: str, empty_url: str):
    Path(empty_url.removeprefix("sqlite:///")).touch()
    ended = run("trace", "m", "--database-url", database_url, "--also", empty_url)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"outboxkit: {shown(empty_url)}: the outboxkit tables are missing")


def test_what_was_not_read_or_is_not_shown_is_said(
    run: Run, database_url: str, also_url: str, monkeypatch: pytest.MonkeyPatch
):
    for module, name, most in ((message, "MOST_SHOWN", 2), (reading, "MOST_NAMES", 1), (reading, "MOST", 3)):
        monkeypatch.setattr(module, name, most)
    kept = ROW | {"published_at": NOW, "correlation_id": "c"}
    write(database_url, *((tables.published, kept | {"position": n, "message_id": f"m-{n}"}) for n in range(1, 5)))
    handled = ({"handler": name, "message_id": "m-1", "type": "OrderConfirmed"} for name in ("A", "B", "C"))
    write(database_url, *((tables.inbox, row) for row in handled))
    ended = run("trace", "--correlation", "c", "--database-url", database_url)
    assert "more          1 message not shown: trace one by its id\n" in ended.out
    text = " ".join(ended.out.split())
    assert ", as 3 messages had been found in " in text
    assert text.endswith(f"the inbox's rows of handlers behind A in {database_url}")
    nothing = run("trace", "of nobody", "--database-url", database_url, "--also", also_url).out
    assert "OUTBOXKIT_INBOX_RETENTION" in nothing
    assert "OUTBOXKIT_PUBLISHED_RETENTION" not in nothing
    assert "--also" not in nothing


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


@pytest.mark.parametrize("types", ["[", "7", "null"])
def test_types_of_handlers_that_cannot_be_read_are_not_known(run: Run, database_url: str, types: str):
    write(
        database_url,
        (tables.handler, {"handler": "H", "queue": "q", "types": types}),
        (tables.published, ROW | {"message_id": "m", "position": 1, "published_at": NOW}),
    )
    assert run("trace", "m", "--database-url", database_url).code == 0
