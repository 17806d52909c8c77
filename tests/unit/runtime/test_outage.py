"""Telling outages from failures, and waiting them out."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from psycopg import errors as psycopg_errors
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from outboxkit import BrokerRefused, BrokerUnavailable, SchemaError
from outboxkit.errors.failures import first_line
from outboxkit.runtime.outage import Outage, sleep_unless_stopped, what_is_away

GONE = BrokerUnavailable("cannot connect to amqp://mq/")


def wrapped(error: type[DBAPIError], original: BaseException, *, invalidated: bool = False) -> DBAPIError:
    """An error of a driver as SQLAlchemy raises it."""
    return error("SELECT secret", {"card": "4111"}, original, connection_invalidated=invalidated)


DATABASE_GONE = wrapped(OperationalError, psycopg_errors.AdminShutdown("terminating connection"))


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (GONE, "broker"),
        (PoolTimeout("no connection is free"), "database"),
        (wrapped(OperationalError, psycopg_errors.OperationalError("connection refused")), "database"),
        (wrapped(OperationalError, psycopg_errors.AdminShutdown("terminating connection")), "database"),
        (wrapped(OperationalError, psycopg_errors.CrashShutdown("crash")), "database"),
        (wrapped(OperationalError, psycopg_errors.CannotConnectNow("starting up")), "database"),
        (wrapped(OperationalError, psycopg_errors.TooManyConnections("too many clients")), "database"),
        (wrapped(OperationalError, psycopg_errors.ConnectionFailure("gone")), "database"),
        (wrapped(InterfaceError, psycopg_errors.InterfaceError("the connection is closed")), "database"),
        (wrapped(ProgrammingError, psycopg_errors.UndefinedTable("no table"), invalidated=True), "database"),
        (wrapped(ProgrammingError, psycopg_errors.DuplicatePreparedStatement('"_pg3_7" is there')), "database"),
        (wrapped(OperationalError, psycopg_errors.InvalidSqlStatementName('no "_pg3_7"')), "database"),
        (wrapped(ProgrammingError, psycopg_errors.DuplicatePreparedStatement('"mine" is there')), None),
        (wrapped(OperationalError, psycopg_errors.InvalidSqlStatementName('no "mine"')), None),
        (wrapped(OperationalError, psycopg_errors.DeadlockDetected("deadlock")), None),
        (wrapped(OperationalError, psycopg_errors.SerializationFailure("try again")), None),
        (wrapped(OperationalError, psycopg_errors.QueryCanceled("statement timeout")), None),
        (wrapped(OperationalError, psycopg_errors.DiskFull("disk full")), None),
        (wrapped(OperationalError, psycopg_errors.LockNotAvailable("lock timeout")), None),
        (wrapped(IntegrityError, psycopg_errors.UniqueViolation("duplicate key")), None),
        (wrapped(DataError, psycopg_errors.NumericValueOutOfRange("too large")), None),
        (wrapped(ProgrammingError, psycopg_errors.UndefinedTable("no table")), None),
        (BrokerRefused("it was refused", kind="right"), "broker"),
        (SchemaError("missing"), None),
        (ConnectionResetError("a handler's own call"), None),
        (TimeoutError("a handler's own call"), None),
        (ZeroDivisionError(), None),
        (None, None),
    ],
    ids=lambda value: type(getattr(value, "orig", None) or value).__name__,
)
def test_an_outage_is_told_from_a_failure(error: BaseException | None, away: str | None):
    assert what_is_away(error) == away


def test_a_locked_sqlite_database_is_away(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/locked.db", connect_args={"timeout": 0})
    other = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    other.execute("CREATE TABLE a (b)")
    other.execute("BEGIN EXCLUSIVE")
    with engine.connect() as connection, pytest.raises(OperationalError) as raised:
        connection.execute(text("INSERT INTO a VALUES (1)"))
    for code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT):  # the plain code, and one that extends it
        raised.value.orig.sqlite_errorcode = code
        assert what_is_away(raised.value) == "database"
    other.close()
    engine.dispose()


def test_a_sqlite_database_that_cannot_be_opened_is_away(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/no/such/folder.db")
    with pytest.raises(OperationalError) as raised, engine.connect():
        pass
    assert what_is_away(raised.value) == "database"


def test_a_missing_table_is_no_outage(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    with engine.connect() as connection, pytest.raises(OperationalError) as raised:
        connection.execute(text("SELECT * FROM nothing"))
    assert what_is_away(raised.value) is None
    engine.dispose()


class Steps:
    """A step that meets one error after another, and then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.slept: list[float] = []
        self.before_sleeping: Callable[[], None] = lambda: None

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.before_sleeping()

    def outage(self, **more: Any) -> Outage:
        return Outage("unit", sleep=self.sleep, **more)


async def test_without_an_outage_nothing_is_said_and_nothing_waits():
    steps = Steps()
    with capture_logs() as said:
        assert await steps.outage().ride_out(steps, asyncio.Event()) == "done"
    assert (steps.calls, steps.slept, said) == (1, [], [])


async def test_an_outage_is_waited_out_and_said_once_at_each_end():
    steps = Steps(*[GONE] * 5)
    outage = steps.outage()
    with capture_logs() as said:
        assert await outage.ride_out(steps, asyncio.Event()) == "done"
        assert await outage.ride_out(steps, asyncio.Event()) == "done"
    assert steps.calls == 7
    assert len(steps.slept) == 5
    assert [(line["log_level"], line["event"]) for line in said] == [
        ("warning", "broker is away, waiting"),
        ("info", "broker is back, work goes on"),
    ]
    assert said[0]["error"] == "BrokerUnavailable: cannot connect to amqp://mq/"
    assert {line["process"] for line in said} == {"unit"}


async def test_each_server_is_said_to_go_and_to_come_back_once():
    steps = Steps(GONE, GONE, DATABASE_GONE, DATABASE_GONE, GONE)
    with capture_logs() as said:
        await steps.outage().ride_out(steps, asyncio.Event())
    assert [line["event"] for line in said] == [
        "broker is away, waiting",
        "database is away, waiting",
        "broker is back, work goes on",
        "database is back, work goes on",
    ]


async def test_a_step_ends_the_outages_of_those_that_it_reaches():
    steps = Steps(GONE)
    outage = steps.outage()
    with capture_logs() as said:
        outage.begins(DATABASE_GONE)
        await outage.ride_out(steps, asyncio.Event(), reaches=("broker",))
        assert list(outage.errors) == ["database"]
        await outage.ride_out(steps, asyncio.Event(), reaches=("database",))
    assert [line["event"] for line in said] == [
        "database is away, waiting",
        "broker is away, waiting",
        "broker is back, work goes on",
        "database is back, work goes on",
    ]


async def test_the_outage_of_a_broker_that_cannot_be_used_ends_with_no_step():
    """Such as a step that asked the database alone, while the broker is away or blocks publishers."""
    trouble: list[str | None] = ["the broker has blocked publishers: low on disk", None]
    steps = Steps()
    outage = steps.outage(trouble=lambda: trouble.pop(0))
    outage.begins(GONE)
    for away in (["broker"], []):
        await outage.ride_out(steps, asyncio.Event())
        assert list(outage.errors) == away


async def test_a_long_outage_is_mentioned_every_minute_with_what_is_heard_by_then():
    now = 0.0
    steps = Steps(GONE, *[BrokerUnavailable(f"refused at {second}") for second in range(10, 200, 10)])

    def pass_time() -> None:
        nonlocal now
        now += 10

    steps.before_sleeping = pass_time
    with capture_logs() as said:
        await steps.outage(monotonic=lambda: now).ride_out(steps, asyncio.Event())
    assert [(line["event"], line.get("minutes"), line.get("error", "")[-9:]) for line in said] == [
        ("broker is away, waiting", None, "amqp://mq/"[-9:]),
        ("broker is still away", 1, "sed at 60"),
        ("broker is still away", 2, "ed at 120"),
        ("broker is still away", 3, "ed at 180"),
        ("broker is back, work goes on", None, ""),
    ]


async def test_what_a_log_says_of_an_outage_holds_no_sql_and_no_values():
    steps = Steps(DATABASE_GONE)
    with capture_logs() as said:
        await steps.outage().ride_out(steps, asyncio.Event())
    assert said[0]["error"] == "AdminShutdown: terminating connection"


async def test_a_failure_is_raised_at_once():
    for error in (
        ZeroDivisionError(),
        SchemaError("missing"),
        wrapped(IntegrityError, sqlite3.IntegrityError("twice")),
    ):
        steps = Steps(error)
        with capture_logs() as said, pytest.raises(type(error)):
            await steps.outage().ride_out(steps, asyncio.Event())
        assert (steps.calls, steps.slept, said) == (1, [], [])


async def test_without_patience_the_outage_is_raised():
    steps = Steps(GONE)
    with pytest.raises(BrokerUnavailable):
        await steps.outage(patience=0).ride_out(steps, asyncio.Event())
    assert steps.calls == 1


async def test_a_stop_ends_the_waiting():
    steps, stop = Steps(*[GONE] * 10), asyncio.Event()
    steps.before_sleeping = stop.set
    assert await steps.outage().ride_out(steps, stop) is None
    assert steps.calls == 2


async def test_a_stop_does_not_hide_a_failure():
    steps, stop = Steps(ZeroDivisionError()), asyncio.Event()
    stop.set()
    with pytest.raises(ZeroDivisionError):
        await steps.outage().ride_out(steps, stop)


async def test_a_step_that_succeeds_after_the_stop_counts():
    steps, stop = Steps(), asyncio.Event()
    stop.set()
    assert await steps.outage().ride_out(steps, stop) == "done"


async def test_cancelling_ends_it():
    forever: Callable[[float], Awaitable[None]] = lambda seconds: asyncio.Event().wait()  # noqa: E731
    waiting = asyncio.ensure_future(Outage("unit", sleep=forever).ride_out(Steps(*[GONE] * 9), asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_pause_ends_with_the_stop():
    stop = asyncio.Event()
    pausing = asyncio.ensure_future(sleep_unless_stopped(stop, 3600))
    await asyncio.sleep(0)
    stop.set()
    await pausing
    await sleep_unless_stopped(stop, 3600)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError("\n  padded \n"), "ValueError: padded"),
        (ValueError(), "ValueError"),
        (None, "NoneType: None"),
        (wrapped(IntegrityError, sqlite3.IntegrityError("UNIQUE\nfailed")), "IntegrityError: UNIQUE"),
    ],
)
def test_an_error_in_one_line_without_values(error: BaseException | None, line: str):
    assert first_line(error) == line
    assert "4111" not in first_line(error)
