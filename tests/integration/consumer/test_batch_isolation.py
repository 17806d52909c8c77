"""Each handler of a batch works as if it had a session of its own: nothing that one leaves there is another one's."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, Integer, event, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import FlushError

from outboxkit import Message, TransactionRequired, inbox, inbox_handler, outbox, tables
from outboxkit.consumer import Concurrency, ConsumerPolicy
from outboxkit.database.transaction import HandlerSession
from tests.integration.consumer.running_consumer import Billed, Ordered, Start, dead_letters, starter
from tests.support.plain_client import PlainClient

Act, Run = Callable[[Session], object], Callable[..., bool]


class Base(DeclarativeBase):
    pass


class Noted(Base):
    __tablename__ = "noted"
    number: Mapped[int] = mapped_column(Integer, primary_key=True)


class Stock(Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    left: Mapped[int] = mapped_column(Integer)


signer: ContextVar[str] = ContextVar("signer", default="nobody")


class Signed(Base):
    __tablename__ = "signed"
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    by: Mapped[str] = mapped_column(default=lambda _: signer.get())


@pytest.fixture(autouse=True)
def _tables(pg_engine: Engine) -> Iterator[None]:
    Base.metadata.create_all(pg_engine)
    with pg_engine.begin() as connection:
        connection.execute(text("INSERT INTO stock VALUES (1, 100)"))
    yield
    Base.metadata.drop_all(pg_engine)


@pytest.fixture(params=[Session, HandlerSession], ids=["a user's session", "a worker's session"])
def run(request: pytest.FixtureRequest, pg_engine: Engine) -> Callable[..., bool]:
    """Runs handlers in one batch; if that fails, each alone. Returns whether the batch was committed."""
    return partial(run_in, request.param, pg_engine)


def run_in(kind: type[Session], engine: Engine, *acts: Act) -> bool:

    @inbox_handler("Acts", batch=True)
    def handle(session: Session, event: Ordered) -> None:
        acts[event.number](session)

    spec = inbox.handler_of(handle)
    messages = [Message(id=f"m{n}", type="Ordered", payload=b'{"number":%d}' % n) for n in range(len(acts))]
    try:
        with kind(engine) as session, session.begin():
            inbox.run_batch(session, [inbox.Entry.of(each, spec) for each in messages])
    except inbox.BatchEntryFailed:
        for each in messages:
            with kind(engine) as session, session.begin():
                inbox.run_once(session, each, spec)
        return False
    return True


def noted(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return sorted(session.execute(select(Noted.number)).scalars())


def left(engine: Engine, id_: int = 1) -> int | None:
    with engine.connect() as connection:
        return connection.scalar(select(Stock.left).where(Stock.id == id_))


def adds(session: Session) -> None:
    session.add(Noted(number=7))
    outbox.add(session, Billed(7))


def says(statement: str) -> Act:
    return lambda session: session.connection().exec_driver_sql(statement)


def undoes_in_a_savepoint_of_the_connection(session: Session) -> None:
    with session.connection().begin_nested() as savepoint:
        session.execute(select(Stock)).all()  # which flushes what waits in the session
        savepoint.rollback()


def undoes_in_a_savepoint_in_sql(session: Session) -> None:
    says("SAVEPOINT mine")(session)
    session.execute(select(Stock)).all()
    says("ROLLBACK TO SAVEPOINT mine; RELEASE SAVEPOINT mine")(session)


def undoes_in_a_savepoint_of_the_driver(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.transaction():
        session.execute(select(Stock)).all()
        raise psycopg.Rollback


def expunges(session: Session) -> None:
    session.expunge_all()


UNDOING = (
    undoes_in_a_savepoint_of_the_connection,
    undoes_in_a_savepoint_in_sql,
    undoes_in_a_savepoint_of_the_driver,
    expunges,
)


@pytest.mark.parametrize("second", UNDOING)
def test_what_waits_in_the_session_is_not_undone_by_the_next_one(pg_engine: Engine, run: Run, second: Act):
    run(adds, second)
    with pg_engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.outbox)) == 1
        assert connection.scalar(select(func.count()).select_from(tables.inbox)) == 2
    assert noted(pg_engine) == [7]


def takes(session: Session) -> None:
    session.get_one(Stock, 1).left -= 1


def takes_with_a_lock(session: Session) -> None:
    session.refresh(stock := session.get_one(Stock, 1), with_for_update=True)
    stock.left -= 1


def takes_what_it_reads_again(session: Session) -> None:
    session.expire_all()
    takes(session)


def takes_by_core(session: Session) -> None:
    session.connection().execute(text('UPDATE stock SET "left" = "left" - 1'))


@pytest.mark.parametrize("other", [takes, takes_with_a_lock, takes_what_it_reads_again, takes_by_core])
def test_each_one_changes_what_those_before_it_have_left(pg_engine: Engine, run: Run, other: Act):
    run(takes, other, takes)
    assert left(pg_engine) == 97


@pytest.mark.parametrize(
    "begin", [Session.begin_nested, lambda session: session.connection().begin_nested()], ids=["session", "connection"]
)
def test_a_savepoint_ends_with_its_handler(pg_engine: Engine, run: Run, begin: Callable[[Session], Any]):
    kept: list[Any] = []

    def undoes(_: Session) -> None:
        with suppress(Exception):
            kept.pop().rollback()

    run(lambda session: kept.append(begin(session)), adds, undoes)
    assert noted(pg_engine) == [7]


def test_what_a_handler_adds_is_its_own_until_it_ends(pg_engine: Engine, run: Run):
    """It adds, asks the database, which writes the rows of the one before it, and completes or drops what it added."""

    def completes(session: Session) -> None:
        session.add(row := Noted())
        outbox.add(session, Billed(8))
        with session.no_autoflush:
            row.number = count(session)

    def drops(session: Session) -> None:
        session.add(row := Noted(number=9))
        assert count(session) == 3
        session.expunge(row)

    def count(session: Session) -> int:
        return session.connection().scalar(select(func.count()).select_from(Noted)) or 0

    def adds_a_row(session: Session) -> None:
        session.add(Noted(number=5))

    assert run(adds, count, adds_a_row, completes, drops, lambda session: outbox.add(session, Billed(9)))
    with pg_engine.connect() as connection:
        added = connection.scalars(select(tables.outbox.c.payload).order_by(tables.outbox.c.position)).all()
    assert noted(pg_engine) == [2, 5, 7]
    assert [json.loads(each) for each in added] == [{"number": n} for n in (7, 8, 9)]


def test_an_object_that_another_one_keeps_is_read_anew(pg_engine: Engine, run: Run):
    kept: list[Stock] = []

    def adds_and_keeps(session: Session) -> None:
        kept.append(Stock(id=2, left=10))
        session.add(kept[0])

    def takes_twice(session: Session) -> None:
        session.connection().execute(text('UPDATE stock SET "left" = "left" - 1 WHERE id = 2'))
        session.get_one(Stock, 2).left -= 1

    assert run(adds_and_keeps, takes_twice)
    assert left(pg_engine, 2) == 8


@pytest.mark.parametrize("name", ["before_flush", "after_flush", "after_flush_postexec", "pending_to_persistent"])
def test_a_message_that_a_listener_adds_is_its_handlers(pg_engine: Engine, run: Run, name: str):
    numbers, untold = count(), list[int]()

    def tells(session: Session, *_: object) -> None:
        if untold:
            outbox.add(session, Billed(untold.pop()))

    def adds_a_row(session: Session) -> None:
        untold.append(next(numbers))
        session.add(Noted(number=untold[-1]))

    event.listen(Session, name, tells)
    try:
        assert run(adds_a_row, adds_a_row, undoes_in_a_savepoint_of_the_driver, adds_a_row)
    finally:
        event.remove(Session, name, tells)
    with pg_engine.connect() as connection:
        causes = connection.scalars(select(tables.outbox.c.causation_id).order_by(tables.outbox.c.position)).all()
    assert causes == ["m0", "m1", "m3"]


def test_rows_that_cannot_be_written_fail_their_own_handler(pg_engine: Engine, run: Run):
    def adds_two(session: Session) -> None:
        session.add_all([Noted(number=3), Noted(number=3)])

    def reads(session: Session) -> None:
        with suppress(IntegrityError):
            session.execute(select(Stock)).all()

    with pytest.raises(IntegrityError):
        run(adds, adds_two, reads)
    assert noted(pg_engine) == [7]


def test_context_variables_and_what_a_flush_makes_of_them_are_its_own(pg_engine: Engine, run: Run):
    numbers = count()

    def signs(session: Session) -> None:
        session.add(Signed(number=next(numbers)))

    def signs_as_another(session: Session) -> None:
        signer.set("north")
        signs(session)

    assert run(signs, signs_as_another, signs)
    with pg_engine.connect() as connection:
        rows = connection.execute(select(Signed.number, Signed.by).order_by(Signed.number)).all()
    assert rows == [(0, "nobody"), (1, "north"), (2, "nobody")]


def test_options_of_the_session_are_its_own(pg_engine: Engine, run: Run):
    counts: list[int | None] = []

    def flushes_by_itself(session: Session) -> None:
        session.autoflush = False

    def adds_and_counts(session: Session) -> None:
        session.add(Noted(number=7))
        counts.append(session.scalar(select(func.count()).select_from(Noted)))

    assert run(flushes_by_itself, adds_and_counts)
    assert counts == [1]


def test_a_flush_that_never_comes_to_rest_fails(pg_engine: Engine, run: Run):
    def changes(session: Session, *_: object) -> None:
        session.get_one(Stock, 1).left -= 1

    event.listen(Session, "after_flush_postexec", changes)
    try:
        with pytest.raises(FlushError):
            run(takes)
    finally:
        event.remove(Session, "after_flush_postexec", changes)
    assert left(pg_engine) == 100


def test_options_of_the_connection_are_its_own(pg_engine: Engine, run: Run):
    def adds_in_north(session: Session) -> None:
        session.connection().execution_options(schema_translate_map={None: "north"})
        session.add(Noted(number=1))

    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA north; CREATE TABLE north.noted (LIKE public.noted)"))
    assert run(adds_in_north, adds)
    assert noted(pg_engine) == [7]


def test_a_loaded_object_that_is_kept_can_be_read_by_the_next_one(pg_engine: Engine):
    kept: list[Stock] = []

    def reads(session: Session) -> None:
        kept.append(session.get_one(Stock, 1))

    assert run_in(HandlerSession, pg_engine, reads, lambda _: kept[0].left)
    assert kept[0].left == 100


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("in_loop", [False, True], ids=["in threads", "in the loop"])
async def test_an_object_that_was_built_once_is_written_by_a_later_attempt(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, in_loop: bool, is_batch: bool
):
    kept, trouble = dict[int, Noted](), [ValueError("the first time")]

    @inbox_handler("Keeps", batch=is_batch)
    def keeps(session: Session, event: Ordered) -> None:
        session.add(kept.setdefault(event.number, Noted(number=event.number)))
        session.flush()
        if event.number == 5 and trouble:
            raise trouble.pop()

    start = starter(async_pg_engine, broker, in_loop=in_loop)
    async with start(keeps, concurrency=Concurrency(1, batch=10 if is_batch else 1)) as running:
        await running.takes(range(6), processed=6, **({} if is_batch else {"retried": 1}))
    assert noted(pg_engine) == [*range(6)]


async def test_options_of_the_driver_are_its_own(start: Start, pg_engine: Engine):
    handled: list[int] = []

    @inbox_handler("Rows", batch=True)
    def handle(session: Session, event: Ordered) -> None:
        handled.append(event.number)
        driver: Any = session.connection().connection.driver_connection
        if event.number == 0:
            driver.row_factory = psycopg.rows.dict_row
        else:
            session.add(Noted(number=driver.execute("SELECT 1").fetchone()[0] * event.number))

    async with start(handle, concurrency=Concurrency(1, batch=10)) as running:
        await running.takes(range(5), processed=5)
    assert noted(pg_engine) == [1, 2, 3, 4]
    assert sorted(handled) == [0, 1, 2, 3, 4], "none has failed"


async def test_a_generator_that_ends_late_takes_nothing_of_others(start: Start, pg_engine: Engine):
    async def rows(session: AsyncSession) -> AsyncIterator[int]:
        async with session.begin_nested():
            for row in (await session.execute(text("SELECT generate_series(1, 3)"))).scalars():
                yield row

    @inbox_handler("Acts", batch=True)
    async def handle(session: AsyncSession, event: Ordered) -> None:
        if event.number == 3:
            async for _ in rows(session):
                break  # the event loop closes the generator soon
            return
        session.add(Noted(number=event.number))

    async with start(handle, concurrency=Concurrency(1, batch=10)) as running:
        await running.takes(range(9), processed=9)
    assert noted(pg_engine) == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("is_batch", [False, True], ids=["run_once", "run_batch"])
def test_the_callers_savepoint_holds_the_inbox_row(pg_engine: Engine, is_batch: bool):
    @inbox_handler("Acts", batch=True)
    def handle(session: Session, event: Ordered) -> None:
        savepoint = session.get_nested_transaction()
        assert savepoint is not None
        savepoint.rollback()
        adds(session)

    message, spec = Message(id="m", type="Ordered", payload=b'{"number":1}'), inbox.handler_of(handle)
    with Session(pg_engine) as session, suppress(TransactionRequired, inbox.BatchEntryFailed), session.begin():
        session.begin_nested()
        if is_batch:
            inbox.run_batch(session, [inbox.Entry.of(message, spec)])
        else:
            inbox.run_once(session, message, spec)
    assert noted(pg_engine) == []


@pytest.mark.parametrize("in_loop", [False, True], ids=["in threads", "in the loop"])
async def test_a_migration_costs_one_failure_of_a_connection(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, in_loop: bool
):
    """A prepared statement whose columns have changed ends with the failed transaction."""

    @inbox_handler("Reads")
    def handle(session: Session, event: Ordered) -> None:
        session.execute(text("SELECT * FROM stock")).all()

    start, policy = starter(async_pg_engine, broker, in_loop=in_loop), ConsumerPolicy(max_attempts=3)
    async with start(handle, concurrency=Concurrency(1), policy=policy) as running:
        await running.takes(range(12), processed=12)
        with pg_engine.begin() as connection:
            connection.execute(text("ALTER TABLE stock ADD colour text"))
        await running.takes(range(12, 32), processed=32)


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_pipeline_that_is_left_open_fails_its_own_message(
    start: Start, pg_engine: Engine, is_batch: bool, fails: bool
):
    kept: list[Any] = []

    @inbox_handler("Pipes", batch=is_batch)
    def pipes(session: Session, event: Ordered) -> None:
        if event.number != 1:
            session.add(Noted(number=event.number))
            return
        driver: Any = session.connection().connection.driver_connection
        kept.append(driver.pipeline())
        kept[-1].__enter__()
        driver.execute("ROLLBACK AND CHAIN")
        if fails:
            raise ValueError("its own fault")

    options = {"concurrency": Concurrency(1, batch=10 if is_batch else 1), "policy": ConsumerPolicy(max_attempts=1)}
    async with start(pipes, **options) as running:
        await running.takes(range(6), processed=5, dead=1)
    assert noted(pg_engine) == [0, 2, 3, 4, 5]
    for each in kept:
        with suppress(psycopg.Error):
            each.__exit__(None, None, None)
    (letter,) = dead_letters(pg_engine)
    assert ("its own fault" if fails else "left a block of the driver open") in letter.error
