"""`outboxkit republish`, up to the broker: see tests/integration/operators/test_replay.py for what it publishes."""

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from outboxkit import ConfigurationError
from outboxkit.cli.options import point_in_time
from tests.integration.operators.kept import keep, row
from tests.unit.cli.conftest import Run
from tests.unit.shop import NOW

NOBODY = ("--broker-url", "amqp://127.0.0.1:1/")


@pytest.fixture(autouse=True)
def _kept(at: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOXKIT_PUBLISH_TIMEOUT", "10ms")
    moments = (NOW - timedelta(hours=3), NOW, NOW + timedelta(microseconds=250_000))
    keep(engine, *(row(number, moment, message_id="m") for number, moment in enumerate(moments)))


def test_a_dry_run_says_what_would_happen_and_needs_no_broker(run: Run):
    ended = run("republish", "--to-queue", "q", "--since", "2026-03-01", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == ("3 messages for queue q, published from 2026-03-01T09:00:00Z to 2026-03-01T12:00:00.250000Z\n")
    ended = run("republish", "--to-queue", "q", "--handler", "CountSale", "--handler", "CountTax", "--dry-run")
    assert ended.out.startswith("3 messages for queue q and its handlers CountSale, CountTax alone, published from ")


def test_it_asks_first(run: Run, monkeypatch: pytest.MonkeyPatch):
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(sys, "stdin", terminal)
    ended = run("republish", "--to-queue", "q", *NOBODY)
    assert (ended.code, "nothing was published: add --yes" in ended.err) == (2, True), "without a terminal"
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    ended = run("republish", "--to-queue", "q", *NOBODY)
    assert ended.code == 1
    assert "Publish them again? [y/N]" in ended.out
    assert "republished" not in ended.out


def test_a_broker_that_is_away_is_said(run: Run):
    ended = run("republish", "--to-queue", "q", "--yes", *NOBODY)
    assert ended.code == 1
    assert ended.out.splitlines()[1:] == ["republished 0 of 3"]
    assert "the broker is away" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--yes", "--broker-url", "memory://"), "amqp://… is accepted"),
        (("--dry-run", "--handler", ""), "a handler's name of 1 to 255 bytes is accepted"),
        (("--dry-run", "--handler", "é" * 128), "a handler's name of 1 to 255 bytes is accepted"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, arguments: tuple[str, ...], said: str):
    ended = run("republish", "--to-queue", "q", *arguments)
    assert (ended.code, said in ended.err) == (2, True)


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


def test_message_ids_from_a_file_or_standard_input(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ask = ("republish", "--to-queue", "q", "--dry-run")
    file = tmp_path / "ids"
    file.write_text("\ufeffm\n\n other \n")  # with a byte order mark, as editors of Windows write it
    assert run(*ask, "--ids-file", str(file)).out.endswith("; of the ids, 1 are not kept\n")
    for ids, said in (("m\n", "3 messages for queue q, published from "), ("other\n", "no such message is kept")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(ids))
        assert run(*ask, "--ids-file", "-").out.startswith(said)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "it cannot be read"), (b"", "it holds no message id"), (b"\xff", "it is not text in")],
)
def test_a_file_without_ids_replays_nothing(run: Run, tmp_path: Path, content: bytes | None, problem: str):
    file = tmp_path / "ids"
    if content is not None:
        file.write_bytes(content)
    ended = run("republish", "--to-queue", "q", "--yes", "--ids-file", str(file))
    assert ended.code == 2
    assert ended.err.startswith(f"outboxkit: --ids-file is '{file}': {problem}")
