"""`outboxkit relay` and `outboxkit consume`: what they refuse to start with, and how they sum up."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import relay
from outboxkit.brokers.http import HttpPublisher
from outboxkit.cli.workers import _summary
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


def test_a_consumer_needs_a_queue(run: Run):
    assert refused(run, "unit_handlers") == "which queue? Set OUTBOXKIT_QUEUE, or give `outboxkit consume` --queue NAME"


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


@pytest.mark.parametrize("name", ["unit_missing", "unit_missing.handlers", "json.missing"])
def test_a_module_that_is_not_there_is_named(run: Run, name: str):
    assert "no module named 'unit_missing" in refused(run, name, "--queue", "q") or name == "json.missing"
    assert "MODULE is a dotted name" in refused(run, name, "--queue", "q")


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
    ended = run("replay", "--to-queue", "q", "--since", "2h", "--yes", *given)
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


def test_a_relay_of_an_http_destination(run: Run, database_url: str, started: Started):
    given = ("--database-url", database_url, "--broker-url", "https://pay.example/", "--destination", "payments")
    ended = run("relay", "--drain", *given, "--concurrency", "5", "--publish-timeout", "3s")
    assert ended.code == 0
    made = started["relay"]
    assert isinstance(made.publisher, HttpPublisher)
    assert (made.destination, made.batch_size, made.hold) == ("payments", 40, False)
    assert started["engine_of"] == "payments"
    assert (started["publish_timeout"], started["patience"]) == (timedelta(seconds=6), timedelta(seconds=3))


def test_a_relay_of_a_broker(run: Run, database_url: str, started: Started):
    assert run("relay", "--drain", "--database-url", database_url, "--broker-url", "amqp://mq/").code == 0
    made = started["relay"]
    assert (made.destination, made.batch_size, made.hold) == ("default", 2000, True)
    assert started["publish_timeout"] == timedelta(seconds=10)


@pytest.mark.usefixtures("started")
def test_a_drain_says_that_it_opens_no_admin_port(run: Run, database_url: str):
    drain = ("relay", "--drain", "--database-url", database_url, "--broker-url", "amqp://mq/")
    assert "admin port" not in run(*drain).err
    ended = run(*drain, "--admin-port", "0")
    assert ended.code == 0
    assert "no admin port" in ended.err


def test_what_a_request_carries_comes_from_the_settings_and_is_never_shown(
    run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    secret = "whsec_" + "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="
    somewhere = {"database_url": database_url, "broker_url": "https://pay.example/", "destination": "payments"}
    given = {"http_authorization": "Bearer hunter2", "http_secret": secret, "concurrency": "3"}
    asked: list[dict[str, object]] = []
    with monkeypatch.context() as patched:
        patched.setattr(process, "http_publisher", lambda url, **more: asked.append(more))
        for more in (given, {}):
            compose._publisher(settings.load({**somewhere, **more}))
    first, second = asked
    plain = {"cloudevents": None, "source": "outboxkit"}
    assert first | {"timeout": 0} == plain | {
        "authorization": "Bearer hunter2",
        "secret": secret,
        "concurrency": 3,
        "timeout": 0,
    }
    assert second == plain | {"timeout": timedelta(seconds=10), "concurrency": 8}
    monkeypatch.setenv("OUTBOXKIT_LOG_LEVEL", "debug")
    url = (
        "--broker-url",
        "http://a:hunter2@127.0.0.1:1/",
        "--database-url",
        database_url,
        "--publish-timeout",
        "100ms",
        "--destination",
        "payments",
    )
    for broken in ((), ("--http-secret", "whsec_hunter2"), ("--http-authorization", "Bearer hunter2\r\n")):
        ended = run("relay", "--drain", *url, "--http-authorization", "Bearer hunter2", *broken)
        assert "hunter2" not in ended.out + ended.err


def test_a_drain_is_summed_up():
    assert _summary(Drained(published=5)) == "published 5"
    done = Drained(published=5, later=2, blocked=3, failed={"A": (4, "unroutable: x"), "B": (1, "rejected: y")})
    assert _summary(done).splitlines() == [
        "published 5",
        "2 wait for a later time",
        "3 due, but not published: another relay holds them, or the drain was stopped; the log says more",
        "4 A could not be published: unroutable: x",
        "1 B could not be published: rejected: y",
    ]
    assert _summary(Drained(published=1, blocked=None, expired=2, discarded=3)).splitlines() == [
        "published 1",
        "stopped while the database was away: what is left could not be counted",
        "expired 2, set aside as dead letters",
        "discarded 3 that no queue wanted",
    ]


def test_a_fault_in_a_module_of_handlers_is_told_with_its_place(run: Run, tmp_path: Path):
    def place(name: str, text: str) -> str:
        return refused(run, module(tmp_path, name, text), "--queue", "q")

    said = place("unit_syntax", "x = 1\n\ndef broken(:\n")
    assert said == "module 'unit_syntax' cannot be imported: unit_syntax.py, line 3: SyntaxError: invalid syntax"
    said = place("unit_indent", "def broken():\nreturn\n")
    assert said.startswith("module 'unit_indent' cannot be imported: unit_indent.py, line 2: IndentationError: ")
    place("unit_inner", "import unit_syntax\n")
    assert place("unit_outer", "import unit_inner\n").endswith("unit_syntax.py, line 3: SyntaxError: invalid syntax")
    bare = HANDLERS.replace('@inbox_handler("Handle")', "@inbox_handler")
    assert "unit_bare.py, line 10: ConfigurationError: @inbox_handler has no name on handle" in place("unit_bare", bare)
    wired = "from outboxkit.inbox import Wiring\n\nwiring = Wiring(middleware=[1])\n"
    assert "unit_wired.py, line 3: ConfigurationError: Wiring: 1 is not a middleware" in place("unit_wired", wired)
    assert "unit_event.py, line 5: ConfigurationError: @event takes a name" in place(
        "unit_event", HANDLERS.replace('@event("OrderConfirmed")', "@event")
    )
    assert "unit_deep.py, line 3: ZeroDivisionError" in place("unit_deep", "\ndef f():\n    1 / 0\n\nf()\n")


def test_a_method_is_not_a_handler_that_is_found(run: Run, tmp_path: Path):
    method = """

class Orders:
    @inbox_handler("Confirm")
    def confirm(self, session, event: OrderConfirmed): ...
"""
    said = refused(run, module(tmp_path, "unit_method", HANDLERS + method), "--queue", "q")
    assert said.startswith("handlers are functions of their module, and methods are not found: unit_method.Orders.conf")
    assert "confirm = Orders().confirm" in said
    bound = module(tmp_path, "unit_bound", HANDLERS + method + "\nconfirm = Orders().confirm\n")
    assert "memory:// " not in refused(run, bound, "--queue", "q", "--broker-url", "http://pay.example/")
