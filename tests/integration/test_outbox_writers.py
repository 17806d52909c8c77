"""Two writers at once, or a writer and a relay, in real transactions of PostgreSQL: who waits for whom."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, func, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

import outboxkit
from outboxkit import ids, outbox, statements, tables
from tests.polling import eventually

NOW = datetime.now(UTC)


@outboxkit.event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@outboxkit.event("Moved", strict_order=True)
@dataclass(frozen=True)
class Moved:
    number: int


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def waiting(engine: Engine) -> int:
    """How many connections to this database wait for a lock of another one."""
    with engine.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return connection.execute(text(query)).scalar_one()


def payloads(engine: Engine) -> list[bytes]:
    with engine.connect() as connection:
        return list(connection.scalars(select(tables.outbox.c.payload).order_by(tables.outbox.c.position)))


def added(engine: Engine, event: object, **options: object) -> Callable[[], None]:
    """A whole transaction that adds one event."""

    def add() -> None:
        with Session(engine) as session, session.begin():
            outbox.add(session, event, **options)

    return add


ADVISORY_LOCKS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
    "WHERE datname = current_database() AND locktype = 'advisory' AND granted"
)


def add_keys(engine: Engine, keys: list[str]) -> None:
    """A whole transaction that adds an event for each key."""
    with Session(engine) as session, session.begin():
        for key in keys:
            outbox.add(session, Moved(1), key=key)


def numbers_of(engine: Engine, keys: list[str]) -> list[tuple[str, int]]:
    """The keys, each with the number of its lock, as PostgreSQL reckons it."""
    query = (
        "SELECT k, (hashtextextended('outboxkit:' || k, 0) & 1023)::int FROM unnest(CAST(:keys AS text[])) AS given(k)"
    )
    with engine.connect() as connection:
        return [(key, number) for key, number in connection.execute(text(query), {"keys": keys})]


def test_without_strict_order_the_later_position_may_be_committed_first(pg_engine: Engine):
    with Session(pg_engine) as early:
        outbox.add(early, Ordered(1), key="k")
        early.flush()
        added(pg_engine, Ordered(2), key="k")()
        assert payloads(pg_engine) == [b'{"number":2}']
        early.commit()
    assert payloads(pg_engine) == [b'{"number":1}', b'{"number":2}']


@pytest.mark.parametrize("commit", [True, False])
def test_strict_order_makes_the_second_writer_of_a_key_wait(
    pg_engine: Engine, thread: ThreadPoolExecutor, commit: bool
):
    with Session(pg_engine) as early:
        outbox.add(early, Moved(1), key="k")
        early.flush()
        second = thread.submit(added(pg_engine, Moved(2), key="k"))
        eventually(lambda: waiting(pg_engine), lambda found: found == 1)
        outbox.add(early, Moved(3), key="k")
        early.flush()
        assert not second.done()
        early.commit() if commit else early.rollback()
    second.result()
    kept = [b'{"number":1}', b'{"number":3}'] if commit else []
    assert payloads(pg_engine) == [*kept, b'{"number":2}'], "the second was given its position before its turn"


async def test_strict_order_holds_for_async_sessions_too(
    pg_engine: Engine, async_pg_engine: AsyncEngine, thread: ThreadPoolExecutor
):
    async with AsyncSession(async_pg_engine) as early:
        outbox.add(early, Moved(1), key="k")
        await early.flush()
        second = thread.submit(added(pg_engine, Moved(2), key="k"))
        eventually(lambda: waiting(pg_engine), lambda found: found == 1)
        await early.commit()
    second.result()
    assert payloads(pg_engine) == [b'{"number":1}', b'{"number":2}']


def test_other_keys_and_other_events_do_not_wait(pg_engine: Engine):
    with Session(pg_engine) as early:
        outbox.add(early, Moved(1), key="k")
        early.flush()
        added(pg_engine, Moved(2), key="other")()
        added(pg_engine, Ordered(3), key="k")()
        early.commit()
    assert payloads(pg_engine) == [b'{"number":1}', b'{"number":2}', b'{"number":3}']


def test_a_rollback_to_a_savepoint_lets_the_next_writer_pass(pg_engine: Engine):
    with Session(pg_engine) as early:
        savepoint = early.begin_nested()
        outbox.add(early, Moved(1), key="k")
        early.flush()
        savepoint.rollback()
        added(pg_engine, Moved(2), key="k")()
        early.commit()
    assert payloads(pg_engine) == [b'{"number":2}']


def test_writers_of_the_same_keys_in_another_order_do_not_block_each_other(
    pg_engine: Engine, thread: ThreadPoolExecutor
):
    keys = [f"order-{number}" for number in range(40)]

    def write(ordered: list[str]) -> None:
        for _ in range(25):
            with Session(pg_engine) as session, session.begin():
                for key in ordered:
                    outbox.add(session, Moved(1), key=key)

    for writer in [
        thread.submit(write, keys),
        thread.submit(write, keys[::-1]),
        thread.submit(write, keys[20:] + keys),
    ]:
        writer.result()
    assert len(payloads(pg_engine)) == 25 * (40 + 40 + 60)


def test_any_number_of_strict_keys_leaves_the_server_its_locks(pg_engine: Engine, thread: ThreadPoolExecutor):
    """The locks of two such imports, of the writers beside them and of a new connection fit into the default table."""
    keys = [f"order-{number}" for number in range(20_000)]
    with pg_engine.connect() as connection:
        assert connection.execute(text("SHOW max_locks_per_transaction")).scalar_one() == "64"
    with Session(pg_engine) as bulk:
        for key in keys:
            outbox.add(bulk, Moved(1), key=key)
        bulk.flush()
        second = thread.submit(add_keys, pg_engine, keys[::-9])
        beside = [thread.submit(added(pg_engine, Moved(2), key=key)) for key in keys[:2]]
        eventually(lambda: waiting(pg_engine), lambda found: found == 3)
        fresh = create_engine(pg_engine.url)
        added(fresh, Ordered(3), key=keys[0])()
        fresh.dispose()
        with pg_engine.connect() as connection:
            held = connection.execute(text(ADVISORY_LOCKS)).scalar_one()
        assert 900 < held <= statements.write.KEY_LOCKS
        bulk.commit()
    for writer in (second, *beside):
        writer.result()
    assert len(payloads(pg_engine)) == len(keys) + len(keys[::9]) + 3


def test_keys_that_share_a_lock_wait_for_each_other_and_others_do_not(pg_engine: Engine, thread: ThreadPoolExecutor):
    first, *others = numbers_of(pg_engine, [f"order-{number}" for number in range(10_000)])
    shared = next(key for key, number in others if number == first[1])
    apart = next(key for key, number in others if number != first[1])
    with Session(pg_engine) as early:
        outbox.add(early, Moved(1), key=first[0])
        early.flush()
        added(pg_engine, Moved(2), key=apart)()
        second = thread.submit(added(pg_engine, Moved(3), key=shared))
        eventually(lambda: waiting(pg_engine), lambda found: found == 1)
        early.commit()
    second.result()
    assert payloads(pg_engine) == [b'{"number":1}', b'{"number":2}', b'{"number":3}']


@pytest.mark.parametrize("dedup", [False, True], ids=["strict_order", "dedup"])
def test_two_flushes_in_opposite_order_end_in_a_deadlock_error_and_the_loser_succeeds_when_it_runs_again(
    pg_engine: Engine, thread: ThreadPoolExecutor, dedup: bool
):
    both_inside = Barrier(2)

    def write(names: tuple[str, str], *, after_first: Callable[[], object]) -> None:
        with Session(pg_engine) as session, session.begin():
            if is_superuser:
                session.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
            for place, name in enumerate(names):
                if dedup:
                    outbox.add(session, Ordered(1), message_id=name, dedup=True)
                else:
                    outbox.add(session, Moved(1), key=name)
                session.flush()
                if place == 0:
                    after_first()

    def once(names: tuple[str, str]) -> str | None:
        try:
            write(names, after_first=both_inside.wait)
        except OperationalError as error:
            write(names, after_first=int)
            return str(error.orig.sqlstate)
        return None

    with pg_engine.connect() as connection:
        is_superuser = connection.execute(text("SELECT rolsuper FROM pg_roles WHERE rolname = user")).scalar_one()
    (one, _), *others = numbers_of(pg_engine, ["a", "b", "c", "d"])
    other = others[0][0]
    errors = {writer.result() for writer in [thread.submit(once, (one, other)), thread.submit(once, (other, one))]}
    assert errors == {None, "40P01"}
    assert len(payloads(pg_engine)) == (2 if dedup else 4)


@pytest.mark.parametrize(("commit", "kept"), [(True, b'{"number":1}'), (False, b'{"number":2}')])
def test_a_second_writer_of_an_id_waits_and_then_writes_only_if_the_first_did_not(
    pg_engine: Engine, thread: ThreadPoolExecutor, commit: bool, kept: bytes
):
    given = ids.derive("order", 1)
    with Session(pg_engine) as early:
        outbox.add(early, Ordered(1), message_id=given, dedup=True)
        early.flush()
        second = thread.submit(added(pg_engine, Ordered(2), message_id=given, dedup=True))
        eventually(lambda: waiting(pg_engine), lambda found: found == 1)
        early.commit() if commit else early.rollback()
    second.result()
    assert payloads(pg_engine) == [kept]


def test_an_id_may_come_again_when_its_message_has_left(pg_engine: Engine):
    given = ids.derive("order", 1)
    for _ in range(2):
        added(pg_engine, Ordered(1), message_id=given, dedup=True)()
    assert len(payloads(pg_engine)) == 1
    with pg_engine.begin() as connection:
        connection.execute(delete(tables.outbox))
    added(pg_engine, Ordered(1), message_id=given, dedup=True)()
    assert len(payloads(pg_engine)) == 1


def test_many_rows_some_with_dedup_keep_their_order(pg_engine: Engine):
    made = [outboxkit.Message(id=str(number % 700), type="T", payload=b"%d" % number) for number in range(2500)]
    with Session(pg_engine) as session, session.begin():
        outbox.add_all(session, [Ordered(1), Ordered(2)])
        outbox.add_all(session, made, dedup=True)
        outbox.add(session, Ordered(3))
    first = [b"%d" % number for number in range(700)]
    assert payloads(pg_engine) == [b'{"number":1}', b'{"number":2}', *first, b'{"number":3}']


Relay = Callable[[Connection], None]


def publish(connection: Connection) -> None:
    connection.execute(delete(tables.outbox))
    connection.commit()


def hold(connection: Connection) -> None:
    connection.execute(update(tables.outbox).values(due_at=NOW, held=True, attempts=1))
    connection.commit()


@pytest.mark.parametrize("deliver_at", [None, NOW - timedelta(seconds=1)])
@pytest.mark.parametrize(
    ("settle", "cancelled"), [(publish, False), (hold, True), (Connection.rollback, True), (Connection.close, True)]
)
def test_cancel_waits_for_the_relay_and_says_what_became_of_the_message(
    pg_engine: Engine, thread: ThreadPoolExecutor, deliver_at: datetime | None, settle: Relay, cancelled: bool
):
    with Session(pg_engine) as session, session.begin():
        message = outbox.add(session, Ordered(1), deliver_at=deliver_at)

    def cancel() -> bool:
        with Session(pg_engine) as session, session.begin():
            return outbox.cancel(session, message.id)

    with pg_engine.connect() as relay:
        relay.execute(select(tables.outbox.c.position).with_for_update(skip_locked=True)).one()
        answer: Future[bool] = thread.submit(cancel)
        eventually(lambda: waiting(pg_engine), lambda found: found == 1)
        assert not answer.done()
        settle(relay)
    assert answer.result() is cancelled
    assert payloads(pg_engine) == []


def test_a_relay_passes_over_what_is_being_cancelled(pg_engine: Engine):
    with Session(pg_engine) as session, session.begin():
        message = outbox.add(session, Ordered(1))
    claim = select(tables.outbox.c.position).with_for_update(skip_locked=True)
    with Session(pg_engine) as session, pg_engine.connect() as relay:
        assert outbox.cancel(session, message.id)
        assert relay.execute(claim).all() == []
        session.rollback()
        assert len(relay.execute(claim).all()) == 1


def test_cancel_of_a_snapshot_that_is_too_old_is_an_error_and_no_lie(pg_engine: Engine, thread: ThreadPoolExecutor):
    with Session(pg_engine) as session, session.begin():
        message = outbox.add(session, Ordered(1))

    def cancel() -> bool:
        with Session(pg_engine.execution_options(isolation_level="REPEATABLE READ")) as session, session.begin():
            return outbox.cancel(session, message.id)

    with pg_engine.connect() as relay:
        relay.execute(select(tables.outbox.c.position).with_for_update(skip_locked=True)).one()
        answer = thread.submit(cancel)
        eventually(lambda: waiting(pg_engine), lambda found: found == 1)
        publish(relay)
    with pytest.raises(OperationalError, match="could not serialize access"):
        answer.result()


def test_a_delayed_message_is_cancelled_by_its_index(pg_engine: Engine):
    """However many wait: the plan of the first statement, in a table of some size."""
    rows = (
        "INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type, due_at) SELECT 'm' || n, 'T', "
        "'', '', '', now() + n * interval '1 minute' FROM generate_series(1, 5000) n"
    )
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(rows))
        connection.execute(text("VACUUM ANALYZE outboxkit_outbox"))
        query = str(statements.write.cancel_delayed().compile(pg_engine))
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {query}", {"message_id": "m7"}).scalars())
    assert "outboxkit_outbox_delayed" in plan
    assert "Seq Scan" not in plan


def test_one_writer_may_insert_and_nothing_else(pg_engine: Engine):
    """The right to insert is enough for `add` and `add_all`; `dedup` and `cancel` need a little more."""
    with pg_engine.connect() as connection:
        connection.execute(text("CREATE ROLE writer_of_this_test"))
        connection.execute(text("GRANT INSERT ON outboxkit_outbox TO writer_of_this_test"))
        connection.execute(text("SET LOCAL ROLE writer_of_this_test"))
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            outbox.add(session, Moved(1), key="k")
            session.commit()
            outbox.add_all(session, [Ordered(number) for number in range(10)])
            session.commit()
        connection.execute(text("RESET ROLE"))
        assert connection.execute(select(func.count()).select_from(tables.outbox)).scalar_one() == 11
        connection.execute(text("GRANT SELECT (message_id, dedup) ON outboxkit_outbox TO writer_of_this_test"))
        connection.execute(text("SET LOCAL ROLE writer_of_this_test"))
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            outbox.add(session, Ordered(1), message_id="m-1", dedup=True)
            outbox.add(session, Ordered(1), message_id="m-1", dedup=True)
            session.commit()
        connection.execute(text("RESET ROLE"))
        connection.execute(text("GRANT SELECT (message_id, due_at), DELETE ON outboxkit_outbox TO writer_of_this_test"))
        connection.execute(text("SET LOCAL ROLE writer_of_this_test"))
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            assert outbox.cancel(session, "m-1")
            assert not outbox.cancel(session, "m-1")
        connection.rollback()
