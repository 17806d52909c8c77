"""The transaction and the session of a handler belong to its consumer, whatever the handler says in SQL or a driver."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool
from structlog.testing import capture_logs

from outboxkit import Message, Outcome, Reject, TransactionRequired, inbox, inbox_handler
from outboxkit.consumer import Concurrency, ConsumerPolicy
from outboxkit.database.transaction import HandlerSession
from outboxkit.runtime import process
from tests.integration.consumer.running_consumer import Ordered, Running, dead_letters, starter
from tests.support.plain_client import PlainClient

Act = Callable[[Session], object]


def sql(statement: str) -> Act:
    return lambda session: session.connection().exec_driver_sql(statement)


ENDS: dict[str, Act] = {
    "commit": sql("COMMIT"),
    "commit and chain": sql("COMMIT AND CHAIN"),
    "behind a comment": lambda session: session.execute(text("/* tidy */ COMMIT AND CHAIN")),
    "several statements": lambda session: session.execute(text("SELECT 1; COMMIT; BEGIN")),
    "behind RESET ALL": sql("RESET ALL; COMMIT; BEGIN"),
    "RESET ALL and chain": lambda session: [sql(each)(session) for each in ("RESET ALL", "COMMIT AND CHAIN")],
    "a block": sql("DO $$ BEGIN COMMIT; END $$"),
    "two phases": sql("PREPARE TRANSACTION 'x'"),
    "rollback": sql("ROLLBACK"),
    "rollback and chain": sql("ROLLBACK AND CHAIN"),
    "rollback behind a comment": lambda session: session.execute(text("/* tidy */ ROLLBACK AND CHAIN")),
    "rollback and begin": sql("ROLLBACK; BEGIN"),
    "driver": lambda session: driver_of(session).commit(),
}


def driver_of(session: Session) -> Any:
    return session.connection().connection.driver_connection


def message(id_: str) -> Message:
    return Message(id=id_, type="Ordered", payload=b'{"number":1}')


def note(session: Session, what: str) -> None:
    session.execute(text("INSERT INTO noted VALUES (:what)"), {"what": what})


@pytest.fixture(autouse=True)
def _noted(pg_engine: Engine) -> Iterator[None]:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE noted (what text)"))
    yield
    with pg_engine.begin() as connection:
        connection.execute(text("DROP TABLE noted"))


def committed(engine: Engine) -> tuple[list[str], int]:
    """What handlers have noted, and how many messages the inbox knows."""
    with engine.connect() as connection:
        noted = connection.execute(text("SELECT what FROM noted ORDER BY 1")).scalars().all()
        return list(noted), connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one()


def ending(act: Act) -> Any:
    @inbox_handler("Ends")
    def ends(session: Session, event: Ordered) -> None:
        note(session, "before")
        act(session)
        note(session, "after")

    return ends


@pytest.mark.parametrize("name", ENDS)
def test_run_once_refuses_it(pg_engine: Engine, name: str):
    with Session(pg_engine) as session, pytest.raises((TransactionRequired, Exception)) as raised, session.begin():
        inbox.run_once(session, message("m"), ending(ENDS[name]))
    if name not in ("a block", "two phases"):
        assert isinstance(raised.value, TransactionRequired)
        assert "handler 'Ends' ended the transaction" in str(raised.value)
    assert committed(pg_engine) == ([], 0)


def in_places(*by_day: str, by_night: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Where a handler runs: in a thread or in the event loop, alone or in a batch."""
    night = [pytest.param(place, marks=pytest.mark.night) for place in by_night]
    return pytest.mark.parametrize("place", [*by_day, *night])


BATCHES = ("batch in a thread", "batch in the loop")
everywhere = in_places("thread", "loop", *BATCHES)
one_of_each = in_places("thread", "batch in the loop", by_night=("loop", "batch in a thread"))


@dataclass
class Work:
    """A consumer in one of these places. It takes one message or one batch at a time."""

    engine: AsyncEngine
    broker: PlainClient
    place: str

    def consumed_by(
        self, act: Callable[[Session, int], object], max_attempts: int = 2
    ) -> AbstractAsyncContextManager[Running]:
        """A consumer whose handler does this for the number of each message."""

        @inbox_handler("Acts", batch=self.place.startswith("batch"))
        def acts(session: Session, event: Ordered) -> None:
            act(session, event.number)

        return self.consumer(acts, max_attempts)

    def consumer(self, handler: Any, max_attempts: int = 2) -> AbstractAsyncContextManager[Running]:
        start = starter(self.engine, self.broker, in_loop=self.place.endswith("loop"))
        concurrency = Concurrency(1, batch=10 if self.place.startswith("batch") else 1)
        return start(handler, concurrency=concurrency, policy=ConsumerPolicy(max_attempts=max_attempts))


@pytest.fixture
def work(async_pg_engine: AsyncEngine, broker: PlainClient, place: str) -> Work:
    return Work(async_pg_engine, broker, place)


KINDS = (
    ("commit", "behind a comment", "several statements", "behind RESET ALL", "RESET ALL and chain"),
    ("rollback and begin", "rollback behind a comment"),
)


@pytest.mark.parametrize("kinds", KINDS, ids=["commit", "rollback"])
@everywhere
async def test_a_consumer_retries_and_buries_it(work: Work, pg_engine: Engine, kinds: tuple[str, ...]):
    """Nothing is committed, no retry counts as a duplicate, and others of a batch are handled."""
    count = len(kinds)

    def ends(session: Session, number: int) -> None:
        if number < count:
            note(session, "before")
            ENDS[kinds[number]](session)
        note(session, f"order {number}")

    async with work.consumed_by(ends) as consumer:
        await consumer.takes(range(count + 3), retried=count, dead=count, processed=3)
    assert committed(pg_engine) == ([f"order {count + number}" for number in range(3)], 3)
    letters = dead_letters(pg_engine)
    assert len(letters) == count
    assert all("ended the transaction that holds its inbox row" in str(letter) for letter in letters)


@in_places(*BATCHES)
async def test_others_of_a_batch_are_handled_once_whatever_two_handlers_say_one_after_the_other(
    work: Work, pg_engine: Engine
):
    """Behind a ROLLBACK AND CHAIN is no guard: the COMMIT of the next one would keep what the others do."""
    said = {0: "ROLLBACK AND CHAIN", 2: "COMMIT AND CHAIN"}

    def ends(session: Session, number: int) -> None:
        if number % 2 == 0:
            sql(said[number % 4])(session)
        note(session, f"order {number:02}")

    async with work.consumed_by(ends, max_attempts=1) as consumer:
        await consumer.takes(range(40), dead=20, processed=20)
    assert committed(pg_engine) == ([f"order {number:02}" for number in range(1, 40, 2)], 20)


def test_what_belongs_to_a_handler_stays_its_own(pg_engine: Engine):
    """Savepoints, a handler that calls another one, constraints that it names; and the caller's next messages."""

    def inner(session: Session) -> None:
        session.execute(text("SET CONSTRAINTS noted_once IMMEDIATE"))
        with session.begin_nested() as savepoint:
            note(session, "undone")
            savepoint.rollback()
        assert inbox.run_once(session, message("inner"), ending(lambda _: None)) is Outcome.PROCESSED

    with pg_engine.begin() as connection:
        connection.execute(text("ALTER TABLE noted ADD id bigserial, ADD CONSTRAINT noted_once UNIQUE (id) DEFERRABLE"))
    with Session(pg_engine) as session, session.begin():
        for number in range(3):
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                inbox.run_once(session, message(f"m{number}"), ending(lambda _: 1 // 0))
            inbox.run_once(session, message(f"m{number}"), ending(inner if number == 0 else lambda _: None))
    assert committed(pg_engine) == (["after"] * 4 + ["before"] * 4, 4)


def test_reset_all_ends_nothing_and_each_run_of_a_transaction_is_guarded(pg_engine: Engine):
    with Session(pg_engine) as session, session.begin():
        for outcome in (Outcome.PROCESSED, Outcome.DUPLICATE):
            assert inbox.run_once(session, message("handled"), ending(sql("RESET ALL"))) is outcome
    with Session(pg_engine) as session, session.begin():
        assert inbox.run_once(session, message("new"), ending(lambda _: None)) is Outcome.PROCESSED
        with pytest.raises(TransactionRequired):
            inbox.run_once(session, message("other"), ending(ENDS["commit"]))
    assert committed(pg_engine) == (["after", "before"], 1)


SETTINGS = (
    "RESET ALL",
    "SELECT set_config('app.tenant', 'tenant-1', false)",
    "/* x */ SET app.tenant = 'tenant-2'",
    "SET ROLE pg_monitor",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SET timezone = 'Asia/Tokyo'",
    "SET search_path = nowhere",
    "CREATE TEMP TABLE mine ()",
    "CREATE TEMP TABLE outboxkit_inbox (LIKE outboxkit_inbox)",
    "SELECT pg_advisory_lock(7)",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "LISTEN mine",
)


@one_of_each
async def test_what_a_handler_leaves_in_its_session_ends_with_the_transaction(work: Work):
    """On few connections, one message after another; the settings of outboxkit's own sessions are there again."""
    asked = text(
        "SELECT pg_backend_pid(), current_setting('app.tenant', true), current_user = session_user, "
        "current_setting('transaction_read_only'), current_setting('TimeZone'), current_setting('search_path'), "
        "to_regclass('pg_temp.mine')::text, to_regclass('pg_temp.outboxkit_inbox')::text, "
        "(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), "
        "(SELECT count(*) FROM pg_cursors WHERE name = 'mine'), (SELECT count(*) FROM pg_listening_channels())"
    )
    seen: list[Any] = []

    def sets(session: Session, number: int) -> None:
        seen.append(tuple(session.execute(asked).one()))
        if number < len(SETTINGS):
            sql(SETTINGS[number])(session)

    async with work.consumed_by(sets) as consumer:
        for number in range(len(SETTINGS) + 1):
            await consumer.takes([number], processed=number + 1)
    assert len({pid for pid, *_ in seen}) < len(seen) / 2
    assert {(tenant or None, *others) for _, tenant, *others in seen} == {
        (None, True, "off", "UTC", '"$user", public', None, None, 0, 0, 0)
    }


@one_of_each
async def test_what_a_handler_commits_after_a_rollback_of_its_session_is_reset_too(work: Work):
    """The session begins another transaction, whose handler is the only one that knows of it."""

    def leaves(session: Session, number: int) -> None:
        if number == 0:
            session.rollback()
            sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")(session)
            sql("COMMIT AND CHAIN")(session)
        else:
            note(session, f"order {number}")

    async with work.consumed_by(leaves, max_attempts=1) as consumer:
        await consumer.takes([0], dead=1)
        await consumer.takes(range(1, 4), dead=1, processed=3)


@one_of_each
async def test_a_lock_of_a_session_ends_with_a_handler_that_fails(work: Work, pg_engine: Engine):
    def locks(session: Session, number: int) -> None:
        sql("SELECT pg_advisory_lock(7)")(session)
        raise ValueError("locked")

    async with work.consumed_by(locks) as consumer:
        await consumer.takes([1], retried=1, dead=1)
        with pg_engine.connect() as connection:
            assert connection.execute(text("SELECT pg_try_advisory_lock(7)")).scalar_one() is True
    assert [letter.error for letter in dead_letters(pg_engine)] == ["ValueError: locked"]


COPIES = ("COPY (SELECT 1) TO STDOUT", "COPY noted FROM STDIN")


@one_of_each
async def test_a_copy_that_nobody_reads_fails_its_own_message(work: Work, pg_engine: Engine):
    """No ROLLBACK can be sent in the midst of it: the connection ends, and others are handled on a new one."""

    def copies(session: Session, number: int) -> None:
        note(session, f"order {number}")
        if number < len(COPIES):
            sql(COPIES[number])(session)

    async with work.consumed_by(copies) as consumer:
        await consumer.takes(range(len(COPIES) + 2), retried=len(COPIES), dead=len(COPIES), processed=2)
    assert committed(pg_engine) == (["order 2", "order 3"], 2)
    assert all("COPY cannot be used with this method" in letter.error for letter in dead_letters(pg_engine))


@one_of_each
async def test_a_handler_that_goes_on_after_a_copy_is_a_failure_and_no_outage(work: Work, pg_engine: Engine):
    def copies(session: Session, number: int) -> None:
        with suppress(DBAPIError):
            sql(COPIES[0])(session)
        note(session, "after it")

    with capture_logs() as said:
        async with work.consumed_by(copies) as consumer:
            await consumer.takes([1], retried=1, dead=1)
    (letter,) = dead_letters(pg_engine)
    assert "an earlier command, such as a COPY, has not ended" in letter.error
    assert [line for line in said if "away" in line["event"]] == []


@in_places("loop", "batch in the loop", "thread")
async def test_a_copy_of_the_driver_that_is_left_open_fails_its_own_message(work: Work, pg_engine: Engine):
    """It holds the connection's lock, for which the COMMIT would wait for ever."""
    kept: list[Any] = []

    def open_copy(driver: Any) -> Any:
        kept.append(driver.cursor().copy(COPIES[0]))
        return kept[-1]

    @inbox_handler("Copies", batch=work.place.startswith("batch"))
    async def copies(session: AsyncSession, event: Ordered) -> None:
        await session.run_sync(note, f"order {event.number}")
        if event.number == 0:
            await open_copy((await (await session.connection()).get_raw_connection()).driver_connection).__aenter__()

    def copies_in_thread(session: Session, number: int) -> None:
        note(session, f"order {number}")
        if number == 0:
            open_copy(driver_of(session)).__enter__()

    in_thread = work.place == "thread"
    async with work.consumed_by(copies_in_thread) if in_thread else work.consumer(copies) as consumer:
        await consumer.takes(range(3), retried=1, dead=1, processed=2)
    assert committed(pg_engine) == (["order 1", "order 2"], 2)
    (letter,) = dead_letters(pg_engine)
    assert "left a block of the driver open" in letter.error


@in_places("loop", "batch in the loop")
async def test_the_session_is_reset_after_a_rollback_at_the_driver(work: Work, pg_engine: Engine):
    def rolls_back(session: Session, number: int) -> None:
        if number < 3:
            driver: Any = session.connection().connection.dbapi_connection
            driver.rollback()
            driver.autocommit = True
            driver.cursor().execute("SET search_path = nowhere")

    async with work.consumed_by(rolls_back, max_attempts=1) as consumer:
        for number in range(3):
            await consumer.takes([number], dead=number + 1)
        await consumer.takes(range(3, 9), dead=3, processed=6)
    assert all("ended the transaction" in letter.error for letter in dead_letters(pg_engine))


OPTIONS: tuple[Callable[[Any], object], ...] = (
    lambda driver: setattr(driver, "row_factory", dict_row),
    lambda driver: setattr(driver, "cursor_factory", None),
    lambda driver: setattr(driver, "_autocommit", True),  # as `set_autocommit` does behind a ROLLBACK
)


@pytest.mark.parametrize("fails", [False, True])
@one_of_each
async def test_options_of_the_driver_that_a_handler_changes_end_with_its_transaction(work: Work, fails: bool):
    def changes(session: Session, number: int) -> None:
        if number < len(OPTIONS):
            OPTIONS[number](driver_of(session))
            if fails:
                raise Reject("with the options as they are now")

    before: dict[str, int] = {}
    async with work.consumed_by(changes) as consumer:
        for number in range(len(OPTIONS)):
            before = {"dead" if fails else "processed": number + 1}
            await consumer.takes([number], **before)
        await consumer.takes(range(len(OPTIONS), 9), **{**before, "processed": 6 if fails else 9})


@pytest.mark.parametrize(
    "statement",
    ["SET LOCAL search_path TO nowhere", "SET LOCAL ROLE pg_monitor", "SET CONSTRAINTS ALL DEFERRED", "SELECT 1"],
)
async def test_a_connection_whose_session_is_as_it_was_is_used_again(postgresql_url: str, statement: str):
    @inbox_handler("Sets")
    async def sets(session: AsyncSession, event: Ordered) -> None:
        await session.execute(text(statement))
        await session.execute(text("SELECT pg_sleep(0.15)"))

    async def session_of(engine: AsyncEngine) -> Any:
        async with engine.connect() as connection:
            return (await connection.execute(text("SELECT pg_backend_pid(), current_setting('search_path')"))).one()

    engine = process.engine(postgresql_url, name="test", pool_size=1)
    before = await session_of(engine)
    async with AsyncSession(engine) as session, session.begin():
        assert await session.run_sync(inbox.run_once, message("m"), sets) is Outcome.PROCESSED
    assert await session_of(engine) == before
    await engine.dispose()


@pytest.mark.parametrize("end", [AsyncSession.rollback, AsyncSession.close])
async def test_a_handler_that_ends_its_transaction_and_fails_later_leaves_the_connections_next_user_alone(
    postgresql_url: str, end: Callable[[AsyncSession], Awaitable[None]]
):
    engine = process.engine(postgresql_url, name="test", pool_size=1)
    next_user = AsyncExitStack()

    @inbox_handler("Ends")
    async def ends(session: AsyncSession, event: Ordered) -> None:
        await end(session)
        plain = await next_user.enter_async_context(engine.connect())
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SELECT 1"))
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        async with AsyncSession(engine, sync_session_class=HandlerSession) as session, session.begin():
            await session.run_sync(inbox.run_once, message("m"), ends)
    await next_user.aclose()
    assert cast("QueuePool", engine.pool).checkedout() == 0
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar_one() == 1
    await engine.dispose()
