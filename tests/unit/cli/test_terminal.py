"""What commands that take long show on a terminal, and that they show nothing elsewhere."""

import io
import sys
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, insert

from outboxkit import tables
from tests.unit.cli.conftest import Run


class Terminal(io.StringIO):
    """An error stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal from here on: pytest puts its own stream in place when the test itself begins."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_prune_counts_on_a_terminal(run: Run, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch):
    row = {"handler": "H", "message_id": "m", "type": "T", "processed_at": datetime.now(UTC) - timedelta(days=40)}
    with engine.begin() as connection:
        connection.execute(insert(tables.inbox).values(**row))
    terminal = on_terminal(monkeypatch)
    assert run("prune", "--database-url", database_url).out == "inbox: 1 row forgotten\n"
    assert "forgotten: 1 inbox rows and 0 days, 0 dead letters" in terminal.getvalue()


def test_replay_shows_a_bar_on_a_terminal(run: Run, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch):
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        connection.execute(insert(tables.published).values(**row, published_at=datetime.now(UTC), position=1))
    nobody = ("--broker-url", "amqp://127.0.0.1:1/", "--publish-timeout", "10ms")
    terminal = on_terminal(monkeypatch)
    ended = run("replay", "--to-queue", "q", "--yes", "--database-url", database_url, *nobody)
    assert ended.code == 1
    shown = terminal.getvalue()
    assert "replayed" in shown
    assert "0 of 1" in shown


def test_replay_without_a_terminal_publishes_nothing_unasked(
    run: Run, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        connection.execute(insert(tables.published).values(**row, published_at=datetime.now(UTC), position=1))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = run("replay", "--to-queue", "q", "--database-url", database_url)
    assert ended.code == 2
    assert "nothing was published: add --yes" in ended.err


@pytest.mark.parametrize("name", ["", "é" * 128])
def test_replay_refuses_a_name_that_no_handler_has(run: Run, database_url: str, name: str):
    ended = run("replay", "--to-queue", "q", "--handler", name, "--dry-run", "--database-url", database_url)
    assert ended.code == 2
    assert "a handler's name of 1 to 255 bytes is accepted" in ended.err


def test_reconcile_shows_a_bar_on_a_terminal(
    run: Run, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        at = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(insert(tables.published).values(**row, published_at=at, position=1))
        connection.execute(insert(tables.handler).values(handler="H", queue="q", types='["T"]'))
        connection.execute(insert(tables.inbox).values(handler="H", message_id="m", type="T"))
    monkeypatch.setenv("OUTBOXKIT_QUEU", "q")
    terminal = on_terminal(monkeypatch)
    ended = run("reconcile", "--producer", database_url, "--consumer", database_url)
    assert ended.code == 0
    shown = terminal.getvalue()
    assert "compared" in shown
    assert "1 of 1" in shown
    assert "outboxkit: OUTBOXKIT_QUEU is not a setting: did you mean OUTBOXKIT_QUEUE?" in shown


@pytest.mark.parametrize("command", ["status", "trace", "doctor"])
def test_a_pipe_gets_each_line_whole(
    run: Run, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch, command: str
):
    monkeypatch.delenv("COLUMNS")
    message = "019cbd26-8c00-7d3e-9c6c-2f7b1c3f4a55"
    row = {"type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json", "key": "k" * 250}
    with engine.begin() as connection:
        connection.execute(insert(tables.outbox).values(message_id=message, **row, due_at=tables.PARKED))
    arguments = {"trace": [message], "doctor": ["--only", "database"]}.get(command, [])
    whole = run(command, *arguments, "--database-url", database_url).out.splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    folded = run(command, *arguments, "--database-url", database_url).out.splitlines()
    assert len(whole) < len(folded)
