"""One composition: what is read of the settings by commands and programs, and how either ends."""

import ast
import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from psycopg.errors import DiskFull
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from outboxkit import BrokerUnavailable, ConfigurationError, inbox, inbox_handler
from outboxkit.brokers.http import HttpPublisher
from outboxkit.cli import app
from outboxkit.cli import run as in_one_process
from outboxkit.consumer import ConsumerPolicy
from outboxkit.consumer.transactions import DatabaseAway
from outboxkit.relay import RelayPolicy
from outboxkit.runtime import admin, compose, process, settings, supervisor
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.runtime.settings import Settings
from tests.unit.cli.conftest import Run
from tests.unit.shop import OrderConfirmed

WORKERS = Path(__file__).parents[3] / "workers"


@inbox_handler("unit.compose")
def handle(session: object, event: OrderConfirmed) -> None: ...


class Recorded:
    """Settings that note which of them are read."""

    def __init__(self, **options: object) -> None:
        self.chosen = settings.load({"database_url": "sqlite:///:memory:", **options})
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.chosen, name)


async def read_by(made: Callable[[Any], AbstractAsyncContextManager[Any]], **options: object) -> set[str]:
    recorded = Recorded(**options)
    async with made(recorded):
        return recorded.read & set(Settings.model_fields)


async def read() -> dict[str, set[str]]:
    over_http = {"broker_url": "https://pay.example/", "destination": "payments"}
    handlers = [inbox.handler_of(handle)]
    return {
        "relay": await read_by(compose.relay, **over_http) | await read_by(compose.relay) | await read_by(watched),
        "consume": await read_by(lambda chosen: compose.consumer(chosen, handlers, drain=True), queue="q")
        | await read_by(watched),
        "prune": await read_by(compose.retention),
    }


@asynccontextmanager
async def watched(chosen: Any) -> AsyncIterator[None]:
    """The processes of a worker that runs on, and its admin port; `prune` has neither."""
    assert supervisor.supervise(chosen, 1) is None
    async with admin.serving(chosen, Retention(create_async_engine("sqlite+aiosqlite://"), Periods(timedelta(days=1)))):
        yield


def read_around(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which settings a program reads for its log and its stop."""
    recorded = Recorded()
    monkeypatch.setattr("outboxkit.runtime.settings.load", lambda: recorded)
    monkeypatch.setattr(sys, "argv", ["relay.py"])
    monkeypatch.setattr(process, "run", lambda _, **__: 0)
    monkeypatch.setattr(process, "leave", lambda code: code)
    assert compose.main("relay", lambda *_: asyncio.sleep(0, 0)) == 0
    return recorded.read & set(Settings.model_fields)


def options_of(command: str) -> set[str]:
    parameters = typer.main.get_command(app).commands[command].params
    listed = {parameter.name for parameter in parameters if not getattr(parameter, "hidden", False)}
    return listed & set(Settings.model_fields)


async def test_a_command_has_options_for_settings_that_its_composition_reads_and_for_no_other():
    for command, composed in (await read()).items():
        assert options_of(command) <= composed


async def test_a_setting_that_nothing_reads_fails_here(monkeypatch: pytest.MonkeyPatch):
    """What compose does not read is no setting: it is an argument of what it configures."""
    composed = set().union(*(await read()).values())
    assert composed | read_around(monkeypatch) | {"management_url"} == set(Settings.model_fields)  # doctor reads it


@pytest.mark.parametrize("name", ["relay", "consumer", "retention"])
def test_a_program_is_composed_here_and_reads_no_setting_of_its_own(name: str):
    attributes = [node for node in ast.walk(ast.parse((WORKERS / f"{name}.py").read_text())) if hasattr(node, "attr")]
    used = {f"{node.value.id}.{node.attr}" for node in attributes if isinstance(node.value, ast.Name)}
    assert {f"compose.{name}", "compose.main"} <= used
    assert not {each for each in used if each.startswith("settings.")}


HTTP = ("--broker-url", "https://pay.example/hooks/SECRET")


@pytest.mark.parametrize("arguments", [(), ("--drain",), ("--destination", "default")])
def test_messages_for_the_broker_are_not_sent_to_an_http_destination(
    run: Run, database_url: str, arguments: tuple[str, ...]
):
    ended = run("relay", "--database-url", database_url, *HTTP, *arguments)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("outboxkit: --broker-url is an HTTP URL, and the messages of destination 'default' are for")
    assert "--destination NAME" in line
    assert "SECRET" not in line


async def test_another_destination_may_be_a_broker_and_an_own_publisher_may_be_anything(database_url: str):
    chosen = settings.load({"database_url": database_url, "broker_url": "amqp://mq/", "destination": "payments"})
    async with compose.relay(chosen) as made:
        assert (made.destination, made.batch_size, made.keeps_locks) == ("payments", 2000, True)
    publisher = process.publisher("memory://", exchange="e", timeout=chosen.publish_timeout)
    own = create_async_engine("sqlite+aiosqlite://")
    async with compose.relay(chosen, engine=own, publisher=publisher) as made:
        assert (made.engine, made.publisher) == (own, publisher)


async def test_an_own_policy_and_an_own_publisher_are_taken_as_they_are(database_url: str):
    chosen = settings.load({"database_url": database_url, "queue": "q", "max_attempts": "7"})
    policy, publisher = RelayPolicy(unroutable="discard"), HttpPublisher("https://pay.example/", concurrency=5)
    async with compose.relay(chosen, publisher=publisher, policy=policy) as made:
        assert (made.policy, made.batch_size) == (policy, 40)
    async with compose.relay(chosen) as made:
        assert (made.policy, made.keep_published) == (RelayPolicy(max_attempts=7), False)
    more = {"batch_size": "9", "published_retention": "7d", "publish_timeout": "3s"}
    async with compose.relay(settings.load({"database_url": database_url} | more)) as made:
        publisher: Any = made.publisher
        assert (made.batch_size, made.keep_published, publisher._timeout) == (9, True, 3)
    too_short = ConsumerPolicy(retention=timedelta(minutes=1))
    with pytest.raises(ConfigurationError, match="OUTBOXKIT_INBOX_RETENTION is 1m"):
        async with compose.consumer(chosen, [inbox.handler_of(handle)], policy=too_short):
            pass


async def test_handlers_in_the_process_of_their_relay_have_the_limits_of_the_settings(database_url: str):
    options = {"database_url": database_url, "inbox_retention": "9d", "publish_timeout": "3s"}
    async with in_one_process._in_process(settings.load(options), [inbox.handler_of(handle)], inbox.Wiring()) as made:
        publisher: Any = made.publisher
        assert (publisher._retention, publisher._timeout) == (timedelta(days=9), timedelta(seconds=3))


COMMANDS = [
    ("relay",),
    ("relay", "--drain"),
    ("consume", "json", "--queue", "q"),
    ("status",),
    ("migrate",),
    ("migrate", "--check"),
    ("prune",),
    ("dead", "list"),
    ("dead", "show", "1"),
    ("dead", "replay", "1"),
    ("dead", "discard", "1", "--yes"),
    ("republish", "--to-queue", "q"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_works_on_a_database_that_nobody_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    ended = run(*command)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("outboxkit: OUTBOXKIT_DATABASE_URL is not set: ")
    assert "postgresql+psycopg://user:password@host/name or sqlite:///path is accepted" in line
    assert not list(tmp_path.iterdir())
    (tmp_path / "outboxkit.db").touch()
    assert run(*command).err.rstrip().endswith("The messages of `outboxkit run` are in sqlite:///outboxkit.db here")


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each not in (("migrate",), ("status",))], ids=" ".join
)
def test_only_migrate_makes_an_sqlite_file(run: Run, tmp_path: Path, command: tuple[str, ...]):
    broker = () if command[0] in ("migrate", "prune", "dead") else ("--broker-url", "amqp://127.0.0.1:1/")
    consumed = [*command] if command[0] != "consume" else ["consume", "tests.unit.cli.one_handler", "--queue", "q"]
    ended = run(*consumed, *broker, "--database-url", f"sqlite:///{tmp_path}/none.db")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1].startswith("outboxkit: the outboxkit tables are missing: run `outboxkit migrate`")
    assert not (tmp_path / "none.db").exists()


async def test_a_queue_and_handlers_are_asked_for(database_url: str):
    chosen = settings.load({"database_url": database_url})
    with pytest.raises(ConfigurationError, match="which queue"):
        async with compose.consumer(chosen, []):
            pass
    with pytest.raises(ConfigurationError, match="which handlers"):
        compose.load_handlers([])
    with pytest.raises(ConfigurationError, match="'--queue' is not a module: settings come from OUTBOXKIT_… variables"):
        compose.load_handlers(["tests.unit.cli.one_handler", "--queue"])


def test_a_program_takes_no_options_and_says_what_it_has_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async def service(chosen: Settings, stop: asyncio.Event) -> int:
        raise ModuleNotFoundError("No module named 'httpx'", name="httpx")

    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", "sqlite://")
    monkeypatch.setattr(sys, "argv", ["relay.py"])
    assert compose.main("relay", service) == 2
    assert capsys.readouterr().err == "relay: httpx is not installed: pip install 'outboxkit[http]'\n"
    monkeypatch.setattr(sys, "argv", ["relay.py", "--drain"])
    assert compose.main("relay", service) == 2
    told = "relay: '--drain' is not accepted: settings come from OUTBOXKIT_… variables here\n"
    assert capsys.readouterr().err == told


def test_a_broker_that_is_not_set_is_not_said_to_be_wrong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OUTBOXKIT_BROKER_URL", raising=False)
    refused = BrokerUnavailable("cannot connect to amqp://localhost:5672/: refused")
    assert compose.explain(refused)[0].endswith(
        "OUTBOXKIT_BROKER_URL is not set, and this is its default: set it to your broker's"
    )
    monkeypatch.setenv("OUTBOXKIT_BROKER_URL", "amqp://localhost:5672/")
    assert "are host and port in OUTBOXKIT_BROKER_URL right" in compose.explain(refused)[0]


def test_a_file_that_cannot_be_used_is_no_server(tmp_path: Path):
    engine = create_engine(f"sqlite:///{tmp_path}/small.db")
    with engine.connect() as connection:
        connection.execute(text("PRAGMA max_page_count = 1"))
        with pytest.raises(OperationalError) as full:
            connection.execute(text("CREATE TABLE filling AS SELECT randomblob(100000) AS blob"))
    engine.dispose()
    told, code = compose.explain(full.value)
    assert code == 1
    assert told.startswith("the database is away: OperationalError: database or disk is full. Has another process")


def test_a_server_without_room_is_not_said_to_be_down():
    full = DiskFull("no room")
    for error in (
        DatabaseAway(None, None, full),
        OperationalError("", {}, full),
        BrokerUnavailable("DiskFull: no room"),
    ):
        told = compose.explain(error)[0].partition(" is away: ")[2]
        assert told == "DiskFull: no room. Make room on the disk of the database's server"


def test_what_is_away_is_told_with_what_to_look_at():
    told, code = compose.explain(BrokerUnavailable("cannot connect to amqp://mq:5672/: nothing answered within 10 s."))
    assert code == 1
    assert told == (
        "the broker is away: cannot connect to amqp://mq:5672/: nothing answered within 10 s. Is it running, are host "
        "and port in OUTBOXKIT_BROKER_URL right, and does the network let this machine through?"
    )


def test_a_locked_file_of_sqlite_has_no_host_and_no_port():
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    by_publisher = BrokerUnavailable("OperationalError: database is locked")
    by_publisher.peer = "database"
    told = "the database is away: OperationalError: database is locked. Has another process a transaction open"
    for error in (OperationalError("INSERT", {}, busy), by_publisher):
        assert compose.explain(error)[0].startswith(told)
