"""`outboxkit relay` and `outboxkit consume`: what they refuse to start with, and how they sum up."""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import relay
from outboxkit.brokers.http import HttpPublisher
from outboxkit.cli.workers import _summary, show_consumed, show_drained
from outboxkit.consumer.reports import Consumed
from outboxkit.inbox import Outcome
from outboxkit.relay import Drained, Relay
from outboxkit.runtime import compose, process, settings
from tests.unit.cli.conftest import Run

HANDLERS = """
from dataclasses import dataclass
from outboxkit import event, inbox_handler

@event("OrderConfirmed")
@dataclass
class OrderConfirmed:
    order_id: int

@inbox_handler("Handle")
def handle(session, event: OrderConfirmed): ...
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def module(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / f"{name}.py").write_text(text)
    return name


def refused(run: Run, *arguments: str) -> str:
    named = () if "--database-url" in arguments else ("--database-url", "sqlite:///unit.db")
    ended = run("consume", *arguments, *named)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    return line.removeprefix("outboxkit: ")


NEVER_READ = """
from __future__ import annotations
from dataclasses import dataclass
from datetime import date, datetime
from outboxkit import event, inbox_handler

@event("Never")
@dataclass
class Never:
    at: datetime | date

@inbox_handler("Never")
def never(session, event: Never): ...
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unit_missing", "no module named 'unit_missing'"),
        ("unit_missing.handlers", "no module named 'unit_missing"),
        ("json.missing", "MODULE is a dotted name"),
        ("shop/handlers.py", "importable from the current directory, without .py: shop.handlers"),
        ("./shop.py", "importable from the current directory, without .py: shop"),
        ("../shop", "no module named '../shop'; MODULE is a dotted name"),
        ("", "no module named ''; MODULE is a dotted name"),
        ("shop.handlers:send", "without :send: shop.handlers is enough, all of its handlers are taken"),
    ],
)
def test_a_module_that_is_not_there_is_named(run: Run, name: str, said: str):
    assert said in refused(run, name, "--queue", "q")


@pytest.mark.parametrize(
    ("number", "text", "reason"),
    [
        (1, "import unit_gone_dependency", "unit_gone_dependency"),
        (2, "1 / 0", "ZeroDivisionError"),
        (3, "def broken(:", "SyntaxError"),
        (4, "x = 1", "no handler in unit_broken_4"),
        (
            5,
            HANDLERS + "\n@inbox_handler('Handle')\ndef again(session, event: OrderConfirmed): ...",
            "two handlers are",
        ),
        (6, HANDLERS + "\n@inbox_handler('Other')\ndef other(session, event: int): ...", "annotate it"),
        (7, NEVER_READ, "handler 'Never': Never can be encoded, but never decoded: "),
    ],
)
def test_a_module_that_cannot_be_used_says_why(run: Run, tmp_path: Path, number: int, text: str, reason: str):
    assert reason in refused(run, module(tmp_path, f"unit_broken_{number}", text), "--queue", "q")


def test_a_broker_inside_one_process_is_refused(run: Run, tmp_path: Path, database_url: str):
    given = ("--broker-url", "memory://", "--database-url", database_url)
    ended = run("relay", "--drain", *given)
    assert ended.code == 2
    assert "`outboxkit demo` shows memory:// at work" in ended.err
    assert "memory://" in refused(run, module(tmp_path, "unit_good", HANDLERS), "--queue", "q", *given)


@pytest.mark.parametrize("url", ["https://pay.example/", "http://a:hunter2@pay.example/"])
def test_nothing_but_a_relay_speaks_http(run: Run, tmp_path: Path, database_url: str, url: str):
    given = ("--broker-url", url, "--database-url", database_url)
    said = refused(run, module(tmp_path, "unit_http", HANDLERS), "--queue", "q", *given)
    assert said == ("--broker-url is an HTTP URL, a destination for `outboxkit relay` alone; amqp://… is accepted here")
    ended = run("republish", "--to-queue", "q", "--since", "2h", "--yes", *given)
    assert (ended.code, ended.out, ended.err) == (2, "", f"outboxkit: {said}\n")


Started = dict[str, Any]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What `outboxkit relay` made its relay of."""
    found: Started = {}

    class Noted(Relay):
        async def drain(self, stop: asyncio.Event, *, patience: timedelta = timedelta(0)) -> Drained:
            found.update(relay=self, patience=patience)
            return Drained()

    def noted_engine(url: str, *, publish_timeout: timedelta, destination: str) -> AsyncEngine:
        found.update(publish_timeout=publish_timeout, engine_of=destination)
        return process.engine(url, name="unit tests")

    monkeypatch.setattr(relay, "Relay", Noted)
    monkeypatch.setattr(process, "relay_engine", noted_engine)
    return found


def test_a_relay_of_an_http_destination(run: Run, database_url: str, started: Started, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOXKIT_CONCURRENCY", "5")
    given = ("--database-url", database_url, "--broker-url", "https://pay.example/", "--destination", "payments")
    ended = run("relay", "--drain", *given, publish_timeout="3s")
    assert ended.code == 0
    made = started["relay"]
    assert isinstance(made.publisher, HttpPublisher)
    assert (made.destination, made.batch_size, made.keeps_locks) == ("payments", 40, False)
    assert started["engine_of"] == "payments"
    assert (started["publish_timeout"], started["patience"]) == (timedelta(seconds=6), timedelta(seconds=3))


def test_what_a_request_carries_comes_from_the_settings_and_is_never_shown(
    run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    secret = "whsec_" + "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="
    somewhere = {"database_url": database_url, "broker_url": "https://pay.example/", "destination": "payments"}
    given = {"http_authorization": "Bearer hunter2", "http_secret": secret, "concurrency": "3"}
    asked: list[dict[str, object]] = []
    with monkeypatch.context() as patched:
        patched.setattr(process, "publisher", lambda url, **more: asked.append(more))
        for more in (given, {}):
            compose._publisher(settings.load({**somewhere, **more}))
    first, second = asked
    plain = {"exchange": "outboxkit", "timeout": timedelta(seconds=10)}
    assert first == plain | {"authorization": "Bearer hunter2", "secret": secret, "concurrency": 3}
    assert second == plain | {"authorization": None, "secret": None, "concurrency": 8}
    monkeypatch.setenv("OUTBOXKIT_LOG_LEVEL", "debug")
    url = ("--broker-url", "http://a:hunter2@127.0.0.1:1/", "--database-url", database_url)
    for name, value in (("AUTHORIZATION", "Bearer hunter2"), ("SECRET", "whsec_hunter2"), ("AUTHORIZATION", "\r\n")):
        monkeypatch.setenv(f"OUTBOXKIT_HTTP_{name}", value)
        ended = run("relay", "--drain", "--destination", "payments", *url, publish_timeout="100ms")
        assert "hunter2" not in ended.out + ended.err


def test_a_drain_is_summed_up():
    assert _summary(Drained(published=5)) == "published 5"
    done = Drained(published=5, later=2, blocked=3, failed={"A": (4, "unroutable: x"), "B": (1, "rejected: y")})
    assert _summary(done).splitlines() == [
        "published 5",
        "2 wait for a later time",
        "3 due, but not published: another session, usually a relay, has them locked; the log says more",
        "4 A will be tried again: unroutable: x",
        "1 B will be tried again: rejected: y",
    ]
    assert _summary(Drained(published=1, blocked=None, expired=2, discarded=3)).splitlines() == [
        "published 1",
        "what is left could not be counted: the database was away",
        "expired 2, set aside as dead letters",
        "discarded 3 that no queue wanted",
    ]


def test_a_drain_that_was_stopped_in_an_outage_says_so(capsys: pytest.CaptureFixture[str]):
    stopped = Drained(published=1, blocked=3, away="the broker was away: nothing answered")
    assert (show_drained(stopped), show_consumed(Consumed(away=stopped.away))) == (3, 3)
    printed = capsys.readouterr()
    line = "stopped while the broker was away: nothing answered\n"
    assert printed.err == f"published 1\n{line}3 due, but not published\n{line}"
    assert printed.out == "nothing handled\n"
    assert show_drained(Drained(away=stopped.away)) == 3


def test_a_drain_that_was_stopped_is_not_done(capsys: pytest.CaptureFixture[str]):
    assert show_drained(Drained(published=1, blocked=3, stopped=True)) == 3
    assert show_drained(Drained(published=4, stopped=True)) == 0  # the stop came after the last message
    assert show_consumed(Consumed(Counter({Outcome.PROCESSED: 2}), stopped=True)) == 3
    printed = capsys.readouterr()
    assert printed.err == "published 1\nstopped before the end\n3 due, but not published\nstopped before the end\n"
    assert printed.out == "published 4\nprocessed 2\n"
