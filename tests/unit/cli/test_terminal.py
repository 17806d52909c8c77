"""What commands that take long show on a terminal, and that they show nothing elsewhere."""

import io
import sys
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, insert

from outboxkit import tables
from outboxkit.cli import wording
from tests.unit.cli.conftest import Run


def test_replay_without_a_terminal_publishes_nothing_unasked(
    run: Run, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        connection.execute(insert(tables.published).values(**row, published_at=datetime.now(UTC), position=1))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = run("republish", "--to-queue", "q", "--database-url", database_url)
    assert ended.code == 2
    assert "nothing was published: add --yes" in ended.err


@pytest.mark.parametrize("name", ["", "é" * 128])
def test_replay_refuses_a_name_that_no_handler_has(run: Run, database_url: str, name: str):
    ended = run("republish", "--to-queue", "q", "--handler", name, "--dry-run", "--database-url", database_url)
    assert ended.code == 2
    assert "a handler's name of 1 to 255 bytes is accepted" in ended.err


@pytest.mark.parametrize(("width", "lines"), [("80", 4), ("120", 2)])
def test_a_list_can_be_read_on_every_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: str, lines: int
):
    """Where a table would break up its words, each row is written as lines."""
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = {"no.": "number", "message id": "whole", "type": "folded", "error": "folded"}
    row = ["7", "01a21f18-c79e-7409-aef5-cb7bd529aeaa", "OrderConfirmed", "InsufficientFundsOfTheCustomer"]
    wording.print_table(columns, [row])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == lines
    assert all(text in printed for text in (*columns, *row))
