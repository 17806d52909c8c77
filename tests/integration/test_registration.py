"""Two queues with one handler name in one database: a warning when a consumer starts, and an error in `status`."""

import asyncio
import secrets
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Engine, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import event, inbox, inbox_handler, process, tables
from outboxkit.cli import status
from outboxkit.cli.status import show
from outboxkit.consumer.registration import Registration
from outboxkit.doctor import handlers
from outboxkit.outage import utc_now
from outboxkit.retention import Periods, Retention
from tests.integration.doctoring import look


@event("Ordered")
@dataclass
class Ordered:
    number: int


@inbox_handler("Handle")
def bill(session: Session, event: Ordered) -> None: ...


@inbox_handler("Handle")
def ship(session: Session, event: Ordered) -> None: ...


@inbox_handler("shipping.Other")
def other(session: Session, event: Ordered) -> None: ...


def registration(engine: AsyncEngine, queue: str, *functions: object) -> Registration:
    return Registration(engine, [inbox.handler_of(function) for function in functions], queue=queue)


async def test_the_second_queue_is_told_of_the_first(async_engine: AsyncEngine, engine: Engine):
    with capture_logs() as quiet:
        await registration(async_engine, "billing", bill).begin()
        await registration(async_engine, "billing", bill).begin()  # another process of the same queue
        await registration(async_engine, "none").begin()
    assert quiet == []
    with capture_logs() as told:
        await registration(async_engine, "shipping", ship, other).begin()
    (warning,) = told
    assert (warning["log_level"], warning["event"]) == ("warning", "two queues use one handler name")
    assert (warning["queue"], warning["other_queue"], warning["handlers"]) == ("shipping", "billing", ["Handle"])
    assert warning["cure"].endswith("only one of them runs. Rename one")
    with engine.connect() as connection:
        found = status.read_status(connection, utc_now())
        functions = connection.execute(text("SELECT function FROM outboxkit_handler ORDER BY queue, handler")).scalars()
        assert [path.rpartition(".")[2] for path in functions] == ["bill", "ship", "other"]
        types = connection.execute(text("SELECT types FROM outboxkit_handler")).scalars().all()
        assert types == ['["Ordered"]'] * 3
    assert "error: Handle is a handler of queues billing, shipping" in "\n".join(show.lines(found, width=120))
    assert found.advice == (
        "queues billing and shipping have a handler Handle each, and of a message only one of them runs: rename one",
    )


async def test_a_handler_that_was_renamed_is_its_queues_no_more(async_engine: AsyncEngine, engine: Engine):
    await registration(async_engine, "billing", bill).begin()
    await registration(async_engine, "shipping", ship, other).begin()
    with capture_logs() as told:
        await registration(async_engine, "shipping", other).begin()
    assert told == []
    with engine.connect() as connection:
        assert status.read_status(connection, utc_now()).inbox.shared_names == ()
    with capture_logs() as told:
        await registration(async_engine, "shipping", ship, other).begin()  # an old process that still has it
    assert [entry["other_queue"] for entry in told] == ["billing"]


async def test_a_queue_that_is_gone_is_forgotten(async_engine: AsyncEngine, engine: Engine):
    await registration(async_engine, "old", bill).begin()
    with engine.begin() as connection:
        connection.execute(update(tables.handler).values(last_seen=utc_now() - timedelta(days=2)))
    with capture_logs() as told:
        await registration(async_engine, "new", bill).begin()
    assert told == []
    with engine.connect() as connection:
        assert status.read_status(connection, utc_now()).inbox.shared_names == ()
    await Retention(async_engine, Periods(timedelta(days=1))).prune()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT queue FROM outboxkit_handler")).scalars().all() == ["new"]


async def test_a_consumer_that_runs_for_long_stays_known(async_engine: AsyncEngine, engine: Engine):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise asyncio.CancelledError

    running = Registration(async_engine, [inbox.handler_of(bill)], queue="billing", sleep=sleep)
    await asyncio.gather(running.run(), return_exceptions=True)
    assert slept == [3600, 3600]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT queue FROM outboxkit_handler")).scalars().all() == ["billing"]


async def test_a_role_without_the_right_goes_on(pg_engine: Engine, postgresql_url: str):
    role = f"consumer_{secrets.token_hex(6)}"
    with pg_engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}; GRANT {role} TO CURRENT_USER"))
    engine = process.engine(f"{postgresql_url}?options=-crole%3D{role}", name="test")
    with capture_logs() as told:
        await registration(engine, "billing", bill).begin()
    await engine.dispose()
    with pg_engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {role}"))
    assert [entry["event"] for entry in told] == ["handlers not compared with those of other queues"]
    assert "GRANT SELECT, INSERT, UPDATE ON outboxkit_handler" in told[0]["cure"]


async def test_a_consumer_that_counts_on_more_than_is_kept_is_found(async_pg_engine: AsyncEngine, postgresql_url: str):
    kept = [inbox.handler_of(bill)]
    for queue, days in (("billing", 14), ("mail", 7)):
        await Registration(async_pg_engine, kept, queue=queue, retention=timedelta(days=days)).begin()
    found = await asyncio.to_thread(look, postgresql_url, handlers.check_windows, inbox_retention="7d")
    (finding,) = found
    assert (finding.code, finding.severity) == ("retention-differs", "problem")
    assert finding.what.endswith(" here, and consumers count on more: billing 14 d 0 h.")
    assert finding.commands == ("OUTBOXKIT_INBOX_RETENTION=14d",)
    assert await asyncio.to_thread(look, postgresql_url, handlers.check_windows, inbox_retention="14d") == []
