"""`outboxkit republish`, up to the broker: see tests/integration/operators/test_replay.py for what it publishes."""

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from outboxkit import ConfigurationError, tables
from outboxkit.cli.options import point_in_time
from tests.unit.cli.conftest import Run
from tests.unit.shop import NOW

NOBODY = ("--broker-url", "amqp://127.0.0.1:1/")


def keep(engine: Engine, *moments: datetime) -> None:
    row = {"message_id": "m", "type": "T", "payload": b"", "headers": b"{}", "content_type": "application/json"}
    with engine.begin() as connection:
        rows = [row | {"published_at": moment, "position": number} for number, moment in enumerate(moments)]
        connection.execute(insert(tables.published), rows)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOXKIT_PUBLISH_TIMEOUT", "10ms")


@pytest.fixture
def kept(engine: Engine) -> None:
    keep(engine, NOW - timedelta(hours=3), NOW, NOW + timedelta(microseconds=250_000))


def test_a_dry_run_says_what_would_happen_and_needs_no_broker(run: Run, kept: None, database_url: str):
    ended = run("republish", "--to-queue", "q", "--since", "2026-03-01", "--dry-run", "--database-url", database_url)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == ("3 messages for queue q, published from 2026-03-01T09:00:00Z to 2026-03-01T12:00:00.250000Z\n")


def test_it_asks_first(run: Run, kept: None, database_url: str, monkeypatch: pytest.MonkeyPatch):
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    ended = run("republish", "--to-queue", "q", "--database-url", database_url, *NOBODY)
    assert ended.code == 1
    assert "Publish them again? [y/N]" in ended.out
    assert "replayed" not in ended.out


def test_a_broker_that_is_away_is_said(run: Run, kept: None, database_url: str):
    ended = run("republish", "--to-queue", "q", "--yes", "--database-url", database_url, *NOBODY)
    assert ended.code == 1
    assert ended.out.splitlines()[1:] == ["replayed 0 of 3"]
    assert "the broker is away" in ended.err


def test_memory_is_refused(run: Run, kept: None, database_url: str):
    ended = run("republish", "--to-queue", "q", "--yes", "--database-url", database_url, "--broker-url", "memory://")
    assert ended.code == 2
    assert "amqp://… is accepted" in ended.err


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (None, None),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-02-01", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2026-02-01T10:00", datetime(2026, 2, 1, 10, tzinfo=UTC)),
        ("2026-02-01T10:00:00.5+01:00", datetime(2026, 2, 1, 9, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_moments(text: str | None, moment: datetime | None):
    assert point_in_time("--since", text, NOW) == moment


AT_THE_ENDS = ["0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59:59-23:59"]


@pytest.mark.parametrize("text", ["", "yesterday", "12:00", "2 weeks", "-2h", *AT_THE_ENDS])
def test_what_is_no_moment(text: str):
    with pytest.raises(
        ConfigurationError, match=f"--since is {re.escape(repr(text))}: a moment such as .* or 7d is accepted"
    ):
        point_in_time("--since", text, NOW)


def test_message_ids_from_a_file_or_standard_input(
    run: Run, kept: None, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ask = ("republish", "--to-queue", "q", "--dry-run", "--database-url", database_url)
    file = tmp_path / "ids"
    file.write_text("m\n\n other \n")
    assert run(*ask, "--ids-file", str(file)).out.endswith("; of the ids, 1 are not kept\n")
    for ids, said in (("m\n", "3 messages for queue q, published from "), ("other\n", "no such message is kept")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(ids))
        assert run(*ask, "--ids-file", "-").out.startswith(said)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "it cannot be read"), (b"", "it holds no message id"), (b"\xff", "it is not text in")],
)
def test_a_file_without_ids_replays_nothing(
    run: Run, kept: None, database_url: str, tmp_path: Path, content: bytes | None, problem: str
):
    file = tmp_path / "ids"
    if content is not None:
        file.write_bytes(content)
    ended = run("republish", "--to-queue", "q", "--yes", "--ids-file", str(file), "--database-url", database_url)
    assert ended.code == 2
    assert ended.err.startswith(f"outboxkit: --ids-file is '{file}': {problem}")
