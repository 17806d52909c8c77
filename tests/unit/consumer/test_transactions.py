"""What is tried again, and how often."""

import asyncio
from types import SimpleNamespace
from typing import Any, Self

import pytest
import sqlalchemy
from sqlalchemy import insert
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import inbox_handler
from outboxkit.consumer.transactions import (
    CONFLICTS,
    FULL_SECONDS,
    LOST_CONNECTIONS,
    DatabaseAway,
    Transactions,
    is_conflict,
)
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import TRANSIENT
from outboxkit.inbox import BatchEntryFailed
from outboxkit.runtime.outage import Outage, what_is_away
from tests.unit.consumer.conftest import Bench, in_both_places
from tests.unit.shop import OrderConfirmed, effects, message


class FromServer(Exception):
    def __init__(self, sqlstate: str, table_name: str | None = None, text: str = "") -> None:
        super().__init__(sqlstate, text)
        self.sqlstate, self.diag = sqlstate, SimpleNamespace(table_name=table_name)


def failure(sqlstate: str, table_name: str | None = None, *, statement: str = "INSERT") -> DBAPIError:
    return DBAPIError(statement, {}, FromServer(sqlstate, table_name))


@pytest.mark.parametrize(
    ("error", "conflict"),
    [
        (failure("40001"), True),
        (failure("40P01"), True),
        (failure("23514", "outboxkit_inbox_default"), True),
        (failure("23514", "outboxkit_inbox"), True),
        (failure("23514", "orders"), False),
        (failure("23505", "outboxkit_inbox"), False),
        (ValueError("40001"), False),
        (None, False),
    ],
)
def test_what_is_a_collision(error: BaseException | None, conflict: bool):
    assert is_conflict(error) is conflict


class Work:
    """Fails with each of these in turn, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self, _: Any) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def of_a_batch(cause: Exception) -> BatchEntryFailed:
    error = BatchEntryFailed(0)
    error.__cause__ = cause
    return error


@pytest.fixture
def transactions(async_engine: AsyncEngine) -> Transactions:
    return Transactions(async_engine, Outage("test"))


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_collision_is_tried_again_at_once_a_few_times(transactions: Transactions, wrapped: bool):
    errors = [of_a_batch(failure("40P01")) if wrapped else failure("40001") for _ in range(CONFLICTS)]
    work = Work(*errors)
    assert await transactions.run(work, asyncio.Event()) == "done"
    assert work.calls == CONFLICTS + 1


@pytest.mark.parametrize(("sqlstate", "calls"), [("40001", CONFLICTS + 1), ("57P01", LOST_CONNECTIONS)])
async def test_one_that_always_collides_or_loses_its_connection_fails_in_the_end(
    transactions: Transactions, sqlstate: str, calls: int
):
    work = Work(*(failure(sqlstate) for _ in range(100)))
    with pytest.raises(DBAPIError):
        await transactions.run(work, asyncio.Event())
    assert work.calls == calls


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_connection_that_is_not_given_is_asked_for_again_and_again(
    transactions: Transactions, async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, in_thread: bool
):
    """The probe gets one, which the pool has."""
    refusals, delays, work = [failure("53300") for _ in range(3 * LOST_CONNECTIONS)], list[float](), Work()

    def refuse(*_: object) -> None:
        if refusals:
            raise refusals.pop()

    async def probe() -> None:
        """As it ends with a connection that is there."""

    monkeypatch.setattr("outboxkit.consumer.transactions.jittered", lambda seconds: delays.append(seconds) or 0.0)
    monkeypatch.setattr(transactions, "_probe", probe)
    engine = (await transactions._threads.open()).kw["bind"] if in_thread else async_engine.sync_engine
    listen(engine, "do_connect", refuse)
    assert await transactions.run(work, asyncio.Event(), in_thread=in_thread) == "done"
    assert (refusals, work.calls) == ([], 1)
    assert delays == sorted(delays)
    assert 1 < max(delays) < 5


@pytest.mark.parametrize("sqlstate", ["57014", "55P03", "53200"])
@pytest.mark.parametrize("place", ["outboxkit_inbox", "ops.outboxkit_inbox"])
async def test_an_insert_of_an_inbox_row_that_is_cancelled_is_not_the_handlers_failure(
    transactions: Transactions, sqlstate: str, place: str
):
    work = Work(failure(sqlstate, statement=f"INSERT INTO {place} (handler) VALUES ('Bill')"))
    transactions._outage = Outage("test", passing=TRANSIENT)
    assert await transactions.run(work, asyncio.Event()) == "done"
    with pytest.raises(DBAPIError):
        await transactions.run(Work(failure(sqlstate, statement="INSERT INTO orders (id)")), asyncio.Event())


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_disk_that_is_full_is_nobodys_fault_however_often(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch, wrapped: bool
):
    delays, error = list[float](), failure("53100", statement="INSERT INTO orders (id)")
    monkeypatch.setattr("outboxkit.consumer.transactions.jittered", lambda seconds: delays.append(seconds) or 0.0)
    transactions._outage = Outage("test", passing=TRANSIENT)
    with capture_logs() as log:
        work = Work(*[of_a_batch(error) if wrapped else error] * 1100)  # for most of a day
        assert await transactions.run(work, asyncio.Event()) == "done"
    assert [line["event"] for line in log] == ["database is away, waiting", "database is back, work goes on"]
    assert delays == sorted(delays)
    assert max(delays) == FULL_SECONDS
    assert sum(delays[:10]) > FULL_SECONDS  # few runs of the handler, with its calls to the outside


async def test_a_drain_does_not_wait_for_room_for_ever(transactions: Transactions):
    transactions._outage = Outage("test", passing=TRANSIENT, patience=0.0)
    with pytest.raises(DatabaseAway, match="53100"):
        await transactions.run(Work(failure("53100"), failure("53100")), asyncio.Event())


@pytest.mark.parametrize(
    "text",
    [
        'could not write to file "base/pgsql_tmp/pgsql_tmp7.0": No space left on device',
        'could not resize shared memory segment "/PostgreSQL.18042893" to 8388608 bytes: No space left on device',
        'could not resize shared memory segment "pg_dynshmem/mmap.18042893" to 8388608 bytes: No space left on device',
    ],
)
async def test_what_a_statement_needs_beside_its_rows_is_the_handlers_failure(transactions: Transactions, text: str):
    with pytest.raises(DBAPIError, match="No space left"):
        await transactions.run(Work(DBAPIError("SELECT", {}, FromServer("53100", text=text))), asyncio.Event())


async def test_what_the_handler_raises_comes_at_once(transactions: Transactions):
    work = Work(ValueError("boom"))
    with pytest.raises(ValueError, match="boom"):
        await transactions.run(work, asyncio.Event())
    assert work.calls == 1


async def test_one_that_gives_up_an_outage_does_so_for_all_that_wait(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
):
    transactions._outage, waits, probes = Outage("test", patience=0.0), list[object](), 0

    async def probe() -> None:
        nonlocal probes
        probes += 1
        while len(waits) < 5:
            await asyncio.sleep(0.001)
        raise failure("57P01")

    monkeypatch.setattr(transactions._outage, "begins", waits.append)
    monkeypatch.setattr(transactions, "_probe", probe)

    async def give_up() -> None:
        with pytest.raises(DatabaseAway, match="57P01"):
            await transactions.run(Work(failure("57P01")), asyncio.Event())

    await asyncio.gather(*(give_up() for _ in range(5)))
    assert probes == 1
    await give_up()
    assert probes == 2, "the next outage is waited out anew"


async def test_a_handler_that_runs_out_of_time_is_to_blame_while_the_database_answers(transactions: Transactions):
    work = Work(TimeoutError("handler 'Bill' took longer than 30 s and was cancelled"))
    with pytest.raises(TimeoutError, match="Bill"):
        await transactions.run(work, asyncio.Event())
    assert work.calls == 1


async def test_a_handler_that_runs_out_of_time_is_not_to_blame_for_a_database_that_fell_silent(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
):
    answers: list[Exception | None] = [failure("57P01"), None]

    async def probe(_: float = 0.0) -> None:
        if answers and (error := answers.pop(0)):
            raise error

    monkeypatch.setattr(transactions, "_probe", probe)
    work = Work(TimeoutError("too long"))
    assert await transactions.run(work, asyncio.Event()) == "done"
    assert work.calls == 2


class SilentSession:
    async def __aenter__(self) -> Self:
        await asyncio.Event().wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        """It is never entered."""


async def test_a_database_that_does_not_answer_is_away(transactions: Transactions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transactions, "_sessions", SilentSession)
    with pytest.raises(DBAPIError) as raised:
        await transactions._probe(0.01)
    assert what_is_away(raised.value) == "database"
    assert first_line(raised.value) == "TimeoutError: the database does not answer"


@in_both_places
@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_a_hook_of_the_session_is_a_part_of_the_handler(bench: Bench, error: BaseException):
    attempts: list[int] = []

    def fail(_: Session) -> None:
        attempts.append(1)
        raise error

    @inbox_handler("Hooked")
    def hooked(session: Session, event: OrderConfirmed) -> None:
        sqlalchemy.event.listen(session, "before_commit", fail)
        session.execute(insert(effects).values(what="never"))

    bench.put(message())
    await bench.run_until_settled(hooked, max_attempts=3)
    assert len(attempts) == 3
    assert bench.rows(effects) == []
    (letter,) = bench.letters()
    assert letter["attempts"] == 3
