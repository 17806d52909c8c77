"""The transaction of a handler belongs to its consumer, whatever the handler says in SQL, and in whatever driver."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal, get_args

import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Message, Outcome, Reject, TransactionRequired, inbox, inbox_handler
from outboxkit.consumer import Concurrency, ConsumerPolicy
from tests.integration.consumer.running_consumer import Ordered, Running, dead_letters, publish, starter
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
}


def note(session: Session, what: str) -> None:
    session.execute(text("INSERT INTO noted VALUES (:what)"), {"what": what})


@pytest.fixture(autouse=True)
def noted(pg_engine: Engine) -> Iterator[Callable[[], list[str]]]:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE noted (what text)"))

    def read() -> list[str]:
        with pg_engine.connect() as connection:
            return list(connection.execute(text("SELECT what FROM noted ORDER BY 1")).scalars())

    yield read
    with pg_engine.begin() as connection:
        connection.execute(text("DROP TABLE noted"))


def remembered(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one())


def ending(act: Act, **options: Any) -> Any:
    @inbox_handler("Ends", **options)
    def ends(session: Session, event: Ordered) -> None:
        note(session, "before")
        act(session)
        note(session, "after")

    return ends


def with_driver(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.commit()


@pytest.mark.parametrize("name", [*ENDS, "driver"])
def test_run_once_refuses_it(pg_engine: Engine, noted: Callable[[], list[str]], name: str):
    act = ENDS.get(name, with_driver)
    with Session(pg_engine) as session, pytest.raises((TransactionRequired, Exception)) as raised, session.begin():
        inbox.run_once(session, Message(id="m", type="Ordered", payload=b'{"number":1}'), ending(act))
    if name not in ("a block", "two phases"):
        assert isinstance(raised.value, TransactionRequired)
        assert "handler 'Ends' ended the transaction" in str(raised.value)
    assert (noted(), remembered(pg_engine)) == ([], 0)


Place = Literal["thread", "loop", "batch in a thread", "batch in the loop"]
PLACES: tuple[Place, ...] = get_args(Place)
ONE_OF_EACH = [
    pytest.param(place, marks=[] if place in ("thread", "batch in the loop") else [pytest.mark.night])
    for place in PLACES
]
"""By day in a thread and in the loop, and of these one alone and one in a batch."""


def consume(
    engine: AsyncEngine, broker: PlainClient, place: Place, handler: Any, policy: ConsumerPolicy | None = None
) -> AbstractAsyncContextManager[Running]:
    """A consumer that runs this handler, one message or one batch at a time."""
    concurrency = Concurrency(1, batch=10 if place.startswith("batch") else 1)
    start = starter(engine, broker, in_loop=place.endswith("loop"))
    return start(handler, concurrency=concurrency, policy=policy or ConsumerPolicy())


KINDS = (
    ("commit", "behind a comment", "several statements", "behind RESET ALL", "RESET ALL and chain"),
    ("rollback and begin", "rollback behind a comment"),
)


@pytest.mark.parametrize("kinds", KINDS, ids=["commit", "rollback"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_consumer_retries_and_buries_it(
    async_pg_engine: AsyncEngine,
    broker: PlainClient,
    pg_engine: Engine,
    noted: Callable[[], list[str]],
    place: Place,
    kinds: tuple[str, ...],
):
    """Nothing is committed, no retry counts as a duplicate, and others of a batch are handled."""
    acts = [ENDS[name] for name in kinds]

    @inbox_handler("Ends", batch=place.startswith("batch"))
    def ends(session: Session, event: Ordered) -> None:
        if event.number < len(acts):
            note(session, "before")
            acts[event.number](session)
        note(session, f"order {event.number}")

    async with consume(async_pg_engine, broker, place, ends, ConsumerPolicy(max_attempts=2)) as consumer:
        for number in range(len(acts) + 3):
            publish(broker, number, f"m{number}")
        await consumer.reaches(retried=len(acts), dead=len(acts), processed=3)
    assert noted() == [f"order {len(acts) + number}" for number in range(3)]
    assert remembered(pg_engine) == 3
    letters = dead_letters(pg_engine)
    assert len(letters) == len(acts)
    assert all("ended the transaction that holds its inbox row" in str(letter) for letter in letters)


@pytest.mark.parametrize("place", [place for place in PLACES if place.startswith("batch")])
async def test_others_of_a_batch_are_handled_once_whatever_two_handlers_say_one_after_the_other(
    async_pg_engine: AsyncEngine,
    broker: PlainClient,
    pg_engine: Engine,
    noted: Callable[[], list[str]],
    place: Place,
):
    """Behind a ROLLBACK AND CHAIN is no guard: the COMMIT of the next one would keep what the others do."""
    said = ("ROLLBACK AND CHAIN", "", "COMMIT AND CHAIN", "")

    @inbox_handler("Ends", batch=True)
    def ends(session: Session, event: Ordered) -> None:
        act = said[event.number % 4]
        if act:
            session.connection().exec_driver_sql(act)
        note(session, f"order {event.number}")

    async with consume(async_pg_engine, broker, place, ends, ConsumerPolicy(max_attempts=1)) as consumer:
        for number in range(40):
            publish(broker, number, f"m{number}")
        await consumer.reaches(dead=20, processed=20)
    assert sorted(noted()) == sorted(f"order {number}" for number in range(1, 40, 2))
    assert remembered(pg_engine) == 20


async def test_an_async_handler_neither(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, noted: Callable[[], list[str]]
):
    acts = ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"]

    @inbox_handler("Ends")
    async def ends(session: AsyncSession, event: Ordered) -> None:
        connection = await session.connection()
        await connection.execute(text("INSERT INTO noted VALUES ('before')"))
        await connection.exec_driver_sql(acts[event.number])
        await connection.execute(text("INSERT INTO noted VALUES ('after')"))

    async with consume(async_pg_engine, broker, "loop", ends, ConsumerPolicy(max_attempts=2)) as consumer:
        for number in range(2):
            publish(broker, number, f"m{number}")
        await consumer.reaches(retried=2, dead=2)
    assert (noted(), remembered(pg_engine)) == ([], 0)


def test_what_belongs_to_a_handler_stays_its_own(pg_engine: Engine, noted: Callable[[], list[str]]):
    """Savepoints, a handler that calls another one, constraints that it names; and the caller's next messages."""

    def inner(session: Session) -> None:
        session.execute(text("SET CONSTRAINTS noted_once IMMEDIATE"))
        with session.begin_nested() as savepoint:
            note(session, "undone")
            savepoint.rollback()
        message = Message(id="inner", type="Ordered", payload=b'{"number":1}')
        assert inbox.run_once(session, message, ending(lambda _: None)) is Outcome.PROCESSED

    with pg_engine.begin() as connection:
        connection.execute(text("ALTER TABLE noted ADD id bigserial, ADD CONSTRAINT noted_once UNIQUE (id) DEFERRABLE"))
    with Session(pg_engine) as session, session.begin():
        for number in range(3):
            message = Message(id=f"m{number}", type="Ordered", payload=b'{"number":1}')
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                inbox.run_once(session, message, ending(lambda _: 1 // 0))
            inbox.run_once(session, message, ending(inner if number == 0 else lambda _: None))
    assert noted() == ["after"] * 4 + ["before"] * 4
    assert remembered(pg_engine) == 4


def test_reset_all_ends_nothing_and_each_run_of_a_transaction_is_guarded(
    pg_engine: Engine, noted: Callable[[], list[str]]
):
    handled, other = (Message(id=id_, type="Ordered", payload=b'{"number":1}') for id_ in ("handled", "other"))
    with Session(pg_engine) as session, session.begin():
        for outcome in (Outcome.PROCESSED, Outcome.DUPLICATE):
            assert inbox.run_once(session, handled, ending(sql("RESET ALL"))) is outcome
    with Session(pg_engine) as session, session.begin():
        new = Message(id="new", type="Ordered", payload=b'{"number":1}')
        assert inbox.run_once(session, new, ending(lambda _: None)) is Outcome.PROCESSED
        with pytest.raises(TransactionRequired):
            inbox.run_once(session, other, ending(ENDS["commit"]))
    assert (noted(), remembered(pg_engine)) == (["after", "before"], 1)


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


@pytest.mark.parametrize("place", ONE_OF_EACH)
async def test_what_a_handler_leaves_in_its_session_ends_with_the_transaction(
    async_pg_engine: AsyncEngine, broker: PlainClient, place: Place
):
    """On few connections, one message after another; the settings of outboxkit's own sessions are there again."""
    asked = text(
        "SELECT pg_backend_pid(), current_setting('app.tenant', true), current_user = session_user, "
        "current_setting('transaction_read_only'), current_setting('TimeZone'), current_setting('search_path'), "
        "to_regclass('pg_temp.mine')::text, to_regclass('pg_temp.outboxkit_inbox')::text, "
        "(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), "
        "(SELECT count(*) FROM pg_cursors WHERE name = 'mine'), (SELECT count(*) FROM pg_listening_channels())"
    )
    seen: list[Any] = []

    @inbox_handler("Sets", batch=place.startswith("batch"))
    def sets(session: Session, event: Ordered) -> None:
        seen.append(tuple(session.execute(asked).one()))
        if event.number < len(SETTINGS):
            session.connection().exec_driver_sql(SETTINGS[event.number])

    async with consume(async_pg_engine, broker, place, sets) as consumer:
        for number in range(len(SETTINGS) + 1):
            publish(broker, number, f"m{number}")
            await consumer.reaches(processed=number + 1)
    assert len({pid for pid, *_ in seen}) < len(seen) / 2
    assert {(tenant or None, *others) for _, tenant, *others in seen} == {
        (None, True, "off", "UTC", '"$user", public', None, None, 0, 0, 0)
    }


@pytest.mark.parametrize("place", ONE_OF_EACH)
async def test_what_a_handler_commits_after_a_rollback_of_its_session_is_reset_too(
    async_pg_engine: AsyncEngine, broker: PlainClient, place: Place
):
    """The session begins another transaction, whose handler is the only one that knows of it."""

    @inbox_handler("Leaves", batch=place.startswith("batch"))
    def leaves(session: Session, event: Ordered) -> None:
        if event.number == 0:
            session.rollback()
            sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")(session)
            sql("COMMIT AND CHAIN")(session)
        else:
            note(session, f"order {event.number}")

    async with consume(async_pg_engine, broker, place, leaves, ConsumerPolicy(max_attempts=1)) as consumer:
        publish(broker, 0, "m0")
        await consumer.reaches(dead=1)
        for number in range(1, 4):
            publish(broker, number, f"m{number}")
        await consumer.reaches(dead=1, processed=3)


@pytest.mark.parametrize("place", ONE_OF_EACH)
async def test_a_lock_of_a_session_ends_with_a_handler_that_fails(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, place: Place
):
    @inbox_handler("Locks", batch=place.startswith("batch"))
    def locks(session: Session, event: Ordered) -> None:
        session.connection().exec_driver_sql("SELECT pg_advisory_lock(7)")
        raise ValueError("locked")

    async with consume(async_pg_engine, broker, place, locks, ConsumerPolicy(max_attempts=2)) as consumer:
        publish(broker, 1, "m")
        await consumer.reaches(retried=1, dead=1)
        with pg_engine.connect() as connection:
            assert connection.execute(text("SELECT pg_try_advisory_lock(7)")).scalar_one() is True
    assert [letter.error for letter in dead_letters(pg_engine)] == ["ValueError: locked"]


COPIES = ("COPY (SELECT 1) TO STDOUT", "COPY noted FROM STDIN")


@pytest.mark.parametrize("place", ONE_OF_EACH)
async def test_a_copy_that_nobody_reads_fails_its_own_message(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, noted: Callable[[], list[str]], place: Place
):
    """No ROLLBACK can be sent in the midst of it: the connection ends, and others are handled on a new one."""

    @inbox_handler("Copies", batch=place.startswith("batch"))
    def copies(session: Session, event: Ordered) -> None:
        note(session, f"order {event.number}")
        if event.number < len(COPIES):
            session.connection().exec_driver_sql(COPIES[event.number])

    async with consume(async_pg_engine, broker, place, copies, ConsumerPolicy(max_attempts=2)) as consumer:
        for number in range(len(COPIES) + 2):
            publish(broker, number, f"m{number}")
        await consumer.reaches(retried=len(COPIES), dead=len(COPIES), processed=2)
    assert noted() == ["order 2", "order 3"]
    assert all("COPY cannot be used with this method" in letter.error for letter in dead_letters(pg_engine))


@pytest.mark.parametrize("place", ONE_OF_EACH)
async def test_a_handler_that_goes_on_after_a_copy_is_a_failure_and_no_outage(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, place: Place
):
    @inbox_handler("Copies", batch=place.startswith("batch"))
    def copies(session: Session, event: Ordered) -> None:
        with suppress(DBAPIError):
            session.connection().exec_driver_sql(COPIES[0])
        note(session, "after it")

    with capture_logs() as said:
        async with consume(async_pg_engine, broker, place, copies, ConsumerPolicy(max_attempts=2)) as consumer:
            publish(broker, 1, "m")
            await consumer.reaches(retried=1, dead=1)
    (letter,) = dead_letters(pg_engine)
    assert "an earlier command, such as a COPY, has not ended" in letter.error
    assert [line for line in said if "away" in line["event"]] == []


@pytest.mark.parametrize("place", ["loop", "batch in the loop", "thread"])
async def test_a_copy_of_the_driver_that_is_left_open_fails_its_own_message(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, noted: Callable[[], list[str]], place: Place
):
    """It holds the connection's lock, for which the COMMIT would wait for ever."""
    kept: list[Any] = []

    def open_copy(driver: Any) -> Any:
        kept.append(driver.cursor().copy(COPIES[0]))
        return kept[-1]

    @inbox_handler("Copies", batch=place.startswith("batch"))
    async def copies(session: AsyncSession, event: Ordered) -> None:
        await session.run_sync(note, f"order {event.number}")
        if event.number == 0:
            await open_copy((await (await session.connection()).get_raw_connection()).driver_connection).__aenter__()

    @inbox_handler("Copies")
    def copies_in_thread(session: Session, event: Ordered) -> None:
        note(session, f"order {event.number}")
        if event.number == 0:
            open_copy(session.connection().connection.driver_connection).__enter__()

    handler = copies_in_thread if place == "thread" else copies
    async with consume(async_pg_engine, broker, place, handler, ConsumerPolicy(max_attempts=2)) as consumer:
        for number in range(3):
            publish(broker, number, f"m{number}")
        await consumer.reaches(retried=1, dead=1, processed=2)
    assert noted() == ["order 1", "order 2"]
    (letter,) = dead_letters(pg_engine)
    assert "left a block of the driver open" in letter.error


@pytest.mark.parametrize("place", ["loop", "batch in the loop"])
async def test_the_session_is_reset_after_a_rollback_at_the_driver(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, place: Place
):
    @inbox_handler("RollsBack", batch=place.startswith("batch"))
    def rolls_back(session: Session, event: Ordered) -> None:
        if event.number < 3:
            driver: Any = session.connection().connection.dbapi_connection
            driver.rollback()
            driver.autocommit = True
            driver.cursor().execute("SET search_path = nowhere")

    async with consume(async_pg_engine, broker, place, rolls_back, ConsumerPolicy(max_attempts=1)) as consumer:
        for number in range(3):
            publish(broker, number, f"m{number}")
            await consumer.reaches(dead=number + 1)
        for number in range(3, 9):
            publish(broker, number, f"m{number}")
        await consumer.reaches(dead=3, processed=6)
    assert all("ended the transaction" in letter.error for letter in dead_letters(pg_engine))


OPTIONS: tuple[Callable[[Any], object], ...] = (
    lambda driver: setattr(driver, "row_factory", dict_row),
    lambda driver: setattr(driver, "cursor_factory", None),
    lambda driver: setattr(driver, "_autocommit", True),  # as `set_autocommit` does behind a ROLLBACK
)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("place", ONE_OF_EACH)
async def test_options_of_the_driver_that_a_handler_changes_end_with_its_transaction(
    async_pg_engine: AsyncEngine, broker: PlainClient, pg_engine: Engine, place: Place, fails: bool
):
    @inbox_handler("Changes", batch=place.startswith("batch"))
    def changes(session: Session, event: Ordered) -> None:
        if event.number < len(OPTIONS):
            OPTIONS[event.number](session.connection().connection.driver_connection)
            if fails:
                raise Reject("with the options as they are now")

    async with consume(async_pg_engine, broker, place, changes) as consumer:
        for number in range(len(OPTIONS)):
            publish(broker, number, f"m{number}")
            await consumer.reaches(**{"dead" if fails else "processed": number + 1})
        for number in range(len(OPTIONS), 9):
            publish(broker, number, f"m{number}")
        await (
            consumer.reaches(dead=len(OPTIONS), processed=9 - len(OPTIONS)) if fails else consumer.reaches(processed=9)
        )
    assert [letter.reason for letter in dead_letters(pg_engine)] == ["rejected"] * (len(OPTIONS) * fails)
