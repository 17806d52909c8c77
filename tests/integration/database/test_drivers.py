"""The application's own sessions: every driver, with every kind of session that it has."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

import outboxkit
from outboxkit import Message, Outcome, TransactionRequired, ids, inbox, inbox_handler, outbox, schema, tables
from outboxkit.errors.failures import first_line, traceback_of
from outboxkit.errors.sqlstates import LOCK_NOT_AVAILABLE, sqlstate_of
from outboxkit.schema import migrations
from tests.integration.database.drivers import KINDS, ONE_OF_EACH, Driver, done, names, using

LATER = datetime.now(UTC).replace(microsecond=123456) + timedelta(days=1)
MESSAGE = Message(id="m", type="Ordered", payload=b'{"number":7}')


@outboxkit.event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@outboxkit.event("Counted", strict_order=True)
@dataclass(frozen=True)
class Counted:
    number: int


@inbox_handler("Bill")
def bill(session: Session, event: Ordered) -> None:
    outbox.add(session, event)


@pytest.fixture(params=KINDS, ids=names)
async def driver(request: pytest.FixtureRequest, postgresql_url: str) -> AsyncIterator[Driver]:
    async with using(postgresql_url, request.param) as driver:
        yield driver


@pytest.fixture(params=ONE_OF_EACH, ids=names)
async def plain(request: pytest.FixtureRequest, postgresql_url: str) -> AsyncIterator[Driver]:
    """With sessions that are not scoped."""
    async with using(postgresql_url, request.param) as driver:
        yield driver


def rows(engine: Engine, table: Any = tables.outbox) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(table).order_by(*table.primary_key)))


def payloads(engine: Engine) -> list[bytes]:
    return [row.payload for row in rows(engine)]


async def test_a_message_is_stored_as_it_was_added(driver: Driver, pg_engine: Engine):
    headers = {"tenant": "Zoë", "weight": 2**40, "urgent": True}
    async with driver.begin() as session:
        message = outbox.add(
            session, Ordered(1), key="k", headers=headers, deliver_at=LATER, expires_at=LATER + timedelta(hours=1)
        )
        few = outbox.add_all(session, [Ordered(number) for number in range(2, 5)], key="k", topic="t")
    first, *others = rows(pg_engine)
    assert (first.payload, first.key, first.message_id) == (b'{"number":1}', "k", message.id)
    assert (first.due_at, first.expires_at) == (LATER, LATER + timedelta(hours=1))
    assert b"Zo" in first.headers
    assert [(row.message_id, row.topic, row.due_at) for row in others] == [(each.id, "t", None) for each in few]


async def test_many_messages_keep_their_order(driver: Driver, pg_engine: Engine):
    async with driver.begin() as session:
        outbox.add(session, Ordered(0))
        outbox.add_all(session, [Ordered(number) for number in range(1, 1100)])
    assert payloads(pg_engine) == [b'{"number":%d}' % number for number in range(1100)]


async def test_a_rollback_also_to_a_savepoint_forgets(driver: Driver, pg_engine: Engine):
    session = driver.session()
    outbox.add(session, Ordered(1))
    await done(session.flush())
    await done(session.rollback())
    outbox.add(session, Ordered(2))
    savepoint = await done(session.begin_nested())
    outbox.add_all(session, [Ordered(3), Ordered(4)])
    await done(savepoint.rollback())
    await done(session.commit())
    await done(session.close())
    assert payloads(pg_engine) == [b'{"number":2}']


async def test_dedup_and_cancel(driver: Driver, pg_engine: Engine):
    waiting, gone = ids.derive("waiting"), ids.derive("gone")
    for _ in range(2):
        async with driver.begin() as session:
            outbox.add(session, Ordered(1), message_id=waiting, dedup=True)
            outbox.add(session, Ordered(2), message_id=gone, dedup=True)
    assert await driver.within(outbox.cancel, gone) is True
    assert await driver.within(outbox.cancel, gone) is False
    assert [row.message_id for row in rows(pg_engine)] == [waiting]


async def test_writers_of_a_strict_key_wait_for_each_other(plain: Driver, pg_engine: Engine):
    async with plain.begin() as session, plain.begin() as other:
        outbox.add(session, Counted(1), key="k")
        await done(session.flush())
        await done(other.execute(text("SET LOCAL lock_timeout = '20ms'")))
        outbox.add(other, Counted(2), key="k")
        with pytest.raises(DBAPIError) as refused:
            await done(other.flush())
        assert sqlstate_of(refused.value) == LOCK_NOT_AVAILABLE
        await done(other.rollback())
    assert payloads(pg_engine) == [b'{"number":1}']


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=names)
async def test_autocommit_is_refused(pair: Any, postgresql_url: str, pg_engine: Engine):
    async with using(postgresql_url, pair, isolation_level="AUTOCOMMIT") as driver:
        session = driver.session()
        outbox.add(session, Ordered(1))
        with pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
            await done(session.commit())
        await done(session.close())
        with pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
            await driver.within(inbox.run_once, MESSAGE, bill)
    async with using(postgresql_url, pair) as driver:
        session = driver.session()
        await done(session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}))
        outbox.add(session, Ordered(1))
        with pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
            await done(session.flush())
        await done(session.close())
    assert rows(pg_engine) == []


async def test_a_handler_runs_once(driver: Driver, pg_engine: Engine):
    session = driver.session()
    await done(session.begin())
    assert await driver.on(session, inbox.run_once, MESSAGE, bill) is Outcome.PROCESSED
    await done(session.rollback())
    await done(session.close())
    assert await driver.within(inbox.run_once, MESSAGE, bill) is Outcome.PROCESSED
    assert await driver.within(inbox.run_once, MESSAGE, bill) is Outcome.DUPLICATE
    assert payloads(pg_engine) == [MESSAGE.payload]
    assert [row.message_id for row in rows(pg_engine, tables.inbox)] == ["m"]


async def test_a_batch_runs_once(driver: Driver, pg_engine: Engine):
    @inbox_handler("BillMany", batch=True)
    def bill_many(session: Session, event: Ordered) -> None:
        outbox.add(session, event)

    spec = inbox.handler_of(bill_many)
    moments = (None, LATER - timedelta(days=1), None)
    messages = [
        Message(id=f"m-{n % 2}", type="Ordered", payload=MESSAGE.payload, created_at=moments[n]) for n in range(3)
    ]
    entries = [inbox.Entry.of(message, spec) for message in messages]
    assert await driver.within(inbox.run_batch, entries) == ["processed", "processed", "duplicate"]
    assert await driver.within(inbox.run_batch, entries) == ["duplicate"] * 3
    assert len(rows(pg_engine)) == 2


async def test_a_second_one_at_the_same_time_waits(plain: Driver):
    async with plain.begin() as session:
        await plain.on(session, inbox.run_once, MESSAGE, bill)
        other = plain.session()
        await done(other.begin())
        await done(other.execute(text("SET LOCAL lock_timeout = '20ms'")))
        with pytest.raises(DBAPIError) as refused:
            await plain.on(other, inbox.run_once, MESSAGE, bill)
        assert sqlstate_of(refused.value) == LOCK_NOT_AVAILABLE
        await done(other.close())


def goes_on_after_an_error(session: Session) -> None:
    with pytest.raises(IntegrityError):
        session.execute(insert(tables.inbox).values(handler="Other", message_id="m", type=None))


@pytest.mark.parametrize(
    "end",
    [
        Session.commit,
        lambda session: session.execute(text("COMMIT")),
        lambda session: session.connection().exec_driver_sql("COMMIT"),
        Session.rollback,
        goes_on_after_an_error,
    ],
    ids=["commits", "commits by text", "commits by core", "rolls back", "goes on after an error"],
)
async def test_a_handler_cannot_end_its_transaction(plain: Driver, pg_engine: Engine, end: Any):
    @inbox_handler("Ends")
    def ends(session: Session, event: Ordered) -> None:
        outbox.add(session, event)
        session.flush()
        end(session)

    told = "caught a database error" if end is goes_on_after_an_error else "ended the transaction"
    with pytest.raises(TransactionRequired, match=told):
        await plain.within(inbox.run_once, MESSAGE, ends)
    assert await plain.within(inbox.run_once, Message(id="n", type="Ordered", payload=MESSAGE.payload), bill)


@pytest.mark.parametrize("again", [False, True], ids=["in two handlers", "in one handler"])
@pytest.mark.parametrize("anew", [("ROLLBACK AND CHAIN",), ("ROLLBACK", "BEGIN")], ids=" ".join)
async def test_no_handler_of_a_batch_commits_behind_another_ones_rollback(
    plain: Driver, pg_engine: Engine, anew: Sequence[str], again: bool
):
    """What the others have done is rolled back, and they run again. A handler that says both keeps its own work."""

    def says(session: Session, text_: str) -> None:
        session.connection().exec_driver_sql(text_)

    @inbox_handler("Ends", batch=True)
    def ends(session: Session, event: Ordered) -> None:
        outbox.add(session, event)
        if event.number == 2:
            for each in anew:
                says(session, each)
            if again:
                session.flush()
        if event.number == (2 if again else 4):
            says(session, "COMMIT AND CHAIN")

    spec = inbox.handler_of(ends)
    entries = [
        inbox.Entry.of(Message(id=f"m-{n}", type="Ordered", payload=b'{"number":%d}' % n), spec) for n in range(6)
    ]
    with pytest.raises(inbox.BatchEntryFailed) as failed:
        await plain.within(inbox.run_batch, entries)
    assert failed.value.index == 2
    assert isinstance(failed.value.__cause__, TransactionRequired)
    assert payloads(pg_engine) == ([b'{"number":2}'] if again else [])


async def test_an_error_in_a_savepoint_is_the_handlers_own(plain: Driver, pg_engine: Engine):
    @inbox_handler("Careful")
    def careful(session: Session, event: Ordered) -> None:
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(insert(tables.inbox).values(handler="Other", message_id="m", type=None))
        outbox.add(session, event)

    assert await plain.within(inbox.run_once, MESSAGE, careful) is Outcome.PROCESSED
    assert payloads(pg_engine) == [MESSAGE.payload]


@pytest.mark.parametrize("pair", [pair for pair in KINDS if pair[1].__name__.lower().startswith("async")], ids=names)
async def test_an_async_handler_with_a_timeout(pair: Any, postgresql_url: str, pg_engine: Engine):
    @inbox_handler("Hangs", timeout=0.1)
    async def hangs(session: Any, event: Ordered) -> None:
        outbox.add(session, event)
        await session.execute(text("SELECT pg_sleep(600)"))

    @inbox_handler("Hangs", timeout=60)
    async def quick(session: Any, event: Ordered) -> None:
        outbox.add(session, event)
        await session.execute(text("SELECT 1"))

    async with using(postgresql_url, pair) as driver:
        with pytest.raises(TimeoutError, match="'Hangs' took longer"):
            await driver.within(inbox.run_once, MESSAGE, hangs)
        assert await driver.within(inbox.run_once, MESSAGE, quick) is Outcome.PROCESSED
    assert payloads(pg_engine) == [MESSAGE.payload]


@pytest.mark.parametrize("pair", ONE_OF_EACH, ids=names)
async def test_the_tables_can_be_made_and_dropped(pair: Any, empty_postgresql_url: str):
    async with using(empty_postgresql_url, pair) as driver:
        assert await driver.migrating(migrations.migrate) == (0, migrations.LATEST)
        await driver.migrating(lambda connection: connection.exec_driver_sql("DROP TABLE outboxkit_inbox_default"))
        assert await driver.migrating(migrations.repair) != []
        await driver.migrating(schema.check)
        assert await driver.within(inbox.run_once, MESSAGE, bill) is Outcome.PROCESSED


@pytest.mark.parametrize(
    "statement",
    [
        insert(tables.inbox).values(handler="secret", message_id="m", type=None),
        text("SELECT CAST(:value AS integer)").bindparams(value="secret"),
        text("SELECT 'secret'::integer"),
    ],
    ids=["a row", "a parameter", "a literal"],
)
async def test_errors_say_what_was_wrong_without_values(plain: Driver, statement: Any):
    session = plain.session()
    with pytest.raises(DBAPIError) as failed:
        await done(session.execute(statement))
    await done(session.close())
    for shown in (first_line(failed.value), traceback_of(failed.value)):
        assert "secret" not in "\n".join(line for line in shown.splitlines() if not line.startswith("  ")), shown


async def test_a_row_is_the_same_whichever_driver_wrote_it(plain: Driver, pg_engine: Engine):
    async with plain.begin() as session:
        outbox.add(session, Ordered(1), headers={"n": 1}, deliver_at=LATER)
    with Session(pg_engine) as of_psycopg, of_psycopg.begin():
        outbox.add(of_psycopg, Ordered(1), headers={"n": 1}, deliver_at=LATER)
    ours, theirs = rows(pg_engine)
    differing = {"position", "message_id", "created_at"}
    same = [column.name for column in tables.outbox.columns if column.name not in differing]
    assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]
