"""The rows of one writer in their order; two writers at once, or a writer and a relay: who waits for whom."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, delete, event, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import outboxkit
from outboxkit import ids, outbox, statements, tables
from tests.support.polling import eventually

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


def test_positions_follow_the_calls_whatever_is_added(engine: Engine):
    later = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session:
        outbox.add(session, Ordered(0))
        outbox.add_all(session, [Ordered(number) for number in range(1, 1200)], deliver_at=later)
        outbox.add(session, Ordered(1200), message_id=ids.derive(1200), dedup=True)
        session.flush()
        outbox.add(session, Ordered(1201), expires_at=later)
        with session.begin_nested():
            outbox.add_all(session, [Ordered(number) for number in range(1202, 1205)])
        outbox.add(session, Ordered(1205))
        session.commit()
    assert payloads(engine) == [b'{"number":%d}' % number for number in range(1206)]


def test_a_thousand_rows_are_one_statement(pg_engine: Engine):
    """Counted where they arrive: a statement trigger in the database, whose sequence no rollback takes back."""
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SEQUENCE inserts"))
        connection.execute(
            text(
                "CREATE FUNCTION count_insert() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM nextval(''inserts''); RETURN NULL; END'"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER count_insert AFTER INSERT ON outboxkit_outbox "
                "FOR EACH STATEMENT EXECUTE FUNCTION count_insert()"
            )
        )
    sent: list[str] = []
    event.listen(pg_engine, "before_cursor_execute", lambda _, __, statement, *___: sent.append(statement))
    with Session(pg_engine) as session, session.begin():
        outbox.add_all(session, [Ordered(number) for number in range(1000)])
    assert len(sent) == 1
    with pg_engine.connect() as connection:
        assert connection.execute(text("SELECT last_value FROM inserts")).scalar_one() == 1


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
