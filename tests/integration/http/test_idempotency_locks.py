"""Requests of transactions that are still open, on PostgreSQL: found by the server's locks, and by nothing else's."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.errors import TransactionRequired
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Mismatch, Replay, _locks_of, _row_of
from outboxkit.schema import migrations
from tests.integration.outbox.test_prepared_transactions import preparing_url  # noqa: F401 - a fixture
from tests.servers import Server, create_database, drop_database
from tests.support.ledger_requests import ASKED, CREATED, IN_STEPS, OK, OTHER, begun, count, done, expire, told

LOCKS = _locks_of(_row_of("POST /orders", "alice", "k-1"), ASKED["fingerprint"])
TABLE = "'outboxkit_idempotency'::regclass::oid::bigint"


@pytest.fixture
def holder(pg_engine: Engine) -> Iterator[Session]:
    """A session whose transaction has the key, and stays open."""
    with Session(pg_engine) as session:
        assert isinstance(ledger.begin(session, **ASKED), Fresh)
        yield session


@pytest.fixture(params=["database", "schema"])
def another(request: pytest.FixtureRequest, postgresql: Server, template: str, postgresql_url: str) -> Iterator[Engine]:
    """A second database of the same server, whose tables have the same numbers, or a second schema of the same one."""
    name = f"outboxkit_{secrets.token_hex(6)}"
    if request.param == "database":
        engine = create_engine(create_database(postgresql.url, name, template=template))
    else:
        engine = create_engine(f"{postgresql_url}?options=-csearch_path%3D{name}")
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
            migrations.migrate(connection)
    yield engine
    engine.dispose()
    if request.param == "database":
        drop_database(postgresql.url, name)


def test_another_database_or_schema_has_locks_of_its_own(holder: Session, pg_engine: Engine, another: Engine):
    with Session(another) as session:
        assert isinstance(ledger.begin(session, **OTHER), Fresh)
        assert (told(pg_engine), told(pg_engine, OTHER)) == (InProgress(), Mismatch())
        assert (told(another), told(another, OTHER)) == (Mismatch(), InProgress())


def test_who_lost_does_not_stand_for_the_holder(holder: Session, pg_engine: Engine):
    """Losers keep what they told of until their transactions end."""
    with Session(pg_engine) as loser, Session(pg_engine) as another:
        assert ledger.begin(loser, **OTHER) == Mismatch()
        assert ledger.begin(another, **ASKED) == InProgress()
        assert told(pg_engine) == InProgress()
        assert told(pg_engine, OTHER) == Mismatch()
        holder.rollback()
        assert isinstance(told(pg_engine), Fresh)
        assert isinstance(told(pg_engine, OTHER), Fresh)


def test_after_a_savepoint_is_rolled_back_the_next_one_is_fresh(pg_engine: Engine):
    with Session(pg_engine) as session:
        with session.begin_nested() as savepoint:
            ledger.begin(session, **ASKED)
            assert told(pg_engine) == InProgress()
            savepoint.rollback()
        assert isinstance(told(pg_engine), Fresh)
        session.commit()


def test_an_expired_row_that_is_being_taken_over_is_in_progress(pg_engine: Engine):
    done(pg_engine, OTHER)
    expire(pg_engine)
    with Session(pg_engine) as session:
        assert isinstance(ledger.begin(session, **ASKED), Fresh)
        assert told(pg_engine) == InProgress()
        assert told(pg_engine, OTHER) == Mismatch()


def test_a_replay_locks_nothing(pg_engine: Engine):
    done(pg_engine)
    with Session(pg_engine) as one, Session(pg_engine) as other:
        for session in (one, other):
            assert isinstance(ledger.begin(session, **ASKED), Replay)
            assert ledger.begin(session, **OTHER) == Mismatch()
        assert one.execute(text("SELECT pg_current_xact_id_if_assigned()")).scalar_one() is None
        held = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert one.execute(held).scalar_one() == 0
        with pg_engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            connection.execute(text("DELETE FROM outboxkit_idempotency"))


@pytest.mark.parametrize(
    "lock",
    [
        f"pg_advisory_lock(:whole # {TABLE})",
        f"pg_advisory_xact_lock(:whole # {TABLE})",
        "pg_advisory_xact_lock(:part, :asked)",
    ],
)
def test_somebody_elses_lock_of_the_same_number_is_nothing_worse_than_busy(pg_engine: Engine, lock: str):
    with pg_engine.connect() as stranger:
        given = {"whole": LOCKS["request_lock"], "part": LOCKS["request_part"], "asked": LOCKS["asked_part"]}
        stranger.execute(text(f"SELECT {lock}"), given)
        assert told(pg_engine) == InProgress()
        stranger.execute(text("SELECT pg_advisory_unlock_all()"))
    assert isinstance(told(pg_engine), Fresh)


def test_halves_with_every_sign(pg_engine: Engine):
    """The server shows as unsigned what was given as signed: enough keys for each combination of signs."""
    signs = set()
    for number in range(64):
        fingerprint = bytes([number * 4]) * 32
        asked = ASKED | {"key": f"k-{number}", "fingerprint": fingerprint}
        locks = _locks_of(_row_of("POST /orders", "alice", asked["key"]), fingerprint)
        signs.add(tuple(number < 0 for number in locks.values()))
        with Session(pg_engine) as session:
            ledger.begin(session, **asked)
            assert told(pg_engine, asked) == InProgress()
            assert told(pg_engine, asked | {"fingerprint": b"?" * 32}) == Mismatch()
    assert len(signs) == 8


def test_several_keys_of_one_transaction_are_each_their_own(pg_engine: Engine):
    with Session(pg_engine) as session:
        for number in range(10):
            asked = ASKED | {"key": f"k-{number}", "fingerprint": bytes([number]) * 32}
            ledger.begin(session, **asked)
        for number in range(10):
            asked = ASKED | {"key": f"k-{number}", "fingerprint": bytes([number]) * 32}
            assert told(pg_engine, asked) == InProgress()
            assert told(pg_engine, asked | {"fingerprint": bytes([number + 1]) * 32}) == Mismatch()


def test_a_stored_answer_is_seen_although_somebody_holds_the_lock(pg_engine: Engine):
    done(pg_engine)
    with pg_engine.connect() as stranger:
        stranger.execute(text(f"SELECT pg_advisory_xact_lock(:whole # {TABLE})"), {"whole": LOCKS["request_lock"]})
        assert isinstance(told(pg_engine), Replay)


def test_autocommit_is_refused(postgresql_url: str, pg_engine: Engine):
    engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    for asked in (ASKED, IN_STEPS):
        with Session(engine) as session, pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
            ledger.begin(session, **asked)
    fresh = begun(pg_engine, IN_STEPS)
    with Session(engine) as session:
        for call in (lambda: ledger.complete(session, fresh, OK), lambda: ledger.release(session, fresh)):
            with pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
                call()
    engine.dispose()
    assert count(pg_engine) == 1


def test_a_prepared_transaction_holds_its_key(preparing_url: str):  # noqa: F811
    engine = create_engine(preparing_url)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with Session(connection, join_transaction_mode="control_fully") as session:
            fresh = ledger.begin(session, **ASKED)
            ledger.complete(session, fresh, CREATED)
            session.connection().connection.driver_connection.execute("PREPARE TRANSACTION 'of-a-request'")
        assert told(engine) == InProgress()
        assert told(engine, OTHER) == Mismatch()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("COMMIT PREPARED 'of-a-request'"))
    assert told(engine) == Replay(CREATED, fresh.expires_at)
    engine.dispose()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_session_that_sees_the_past_is_told_so(pg_engine: Engine, level: str):
    """It cannot see what was committed after it began: the database refuses, and nothing wrong is stored."""
    with Session(pg_engine.execution_options(isolation_level=level)) as session:
        session.execute(text("SELECT 1"))
        fresh = done(pg_engine)
        with pytest.raises(OperationalError, match="could not serialize"):
            ledger.begin(session, **ASKED)
        session.rollback()
        assert ledger.begin(session, **ASKED) == Replay(CREATED, fresh.expires_at)
    assert count(pg_engine) == 1


def test_on_sqlite_a_duplicate_waits_for_the_writer(sqlite_url: str):
    engine = create_engine(sqlite_url, connect_args={"timeout": 60})
    with ThreadPoolExecutor(1) as pool, Session(engine) as session:
        fresh = ledger.begin(session, **ASKED)
        second = pool.submit(told, engine, ASKED)
        ledger.complete(session, fresh, CREATED)
        assert not second.done()
        session.commit()
        assert second.result(60) == Replay(CREATED, fresh.expires_at)
    engine.dispose()


COMMITS = ["COMMIT", "/* now */ END", "SELECT 1; COMMIT AND CHAIN", "PREPARE TRANSACTION 'mine'"]


@pytest.mark.parametrize("sql", COMMITS)
def test_the_database_refuses_a_commit_before_the_answer_in_whatever_words(pg_engine: Engine, sql: str):
    with Session(pg_engine) as session:
        ledger.begin(session, **ASKED)
        session.execute(insert(tables.attempt).values(queue="q", message_id="m"))
        with pytest.raises(DBAPIError, match=r"must not commit before it has its answer|prepared transactions are dis"):
            session.connection().exec_driver_sql(sql)
        session.rollback()
    assert isinstance(told(pg_engine), Fresh), "the key is free at once"
    assert count(pg_engine) == 0


IMMEDIATE = "SET CONSTRAINTS ALL IMMEDIATE"


def test_a_request_may_have_its_constraints_checked_before_its_answer(pg_engine: Engine):
    """As an application does for a deferred foreign key: before the key is taken, and after, with one key or two."""
    with Session(pg_engine) as session:
        session.execute(text(IMMEDIATE))
        runs = [ledger.begin(session, **asked) for asked in (ASKED, ASKED | {"key": "k-2"})]
        with session.begin_nested():
            session.execute(text(IMMEDIATE))
        session.execute(text(IMMEDIATE))
        for fresh in runs:
            ledger.complete(session, fresh, CREATED)
        session.execute(text(IMMEDIATE))
        session.commit()
    assert told(pg_engine) == Replay(CREATED, runs[0].expires_at)


@pytest.mark.parametrize("sql", [f"{IMMEDIATE}; COMMIT", "COMMIT"])
def test_a_commit_is_refused_after_a_check_of_the_constraints(pg_engine: Engine, sql: str):
    with Session(pg_engine) as session:
        for number in range(2):
            ledger.begin(session, **ASKED | {"key": f"k-{number}"})
        session.execute(text(IMMEDIATE))
        with pytest.raises(DBAPIError, match="must not commit before it has its answer"):
            session.execute(text(sql))
        session.rollback()
    assert count(pg_engine) == 0


def test_the_answer_of_a_key_that_had_expired_is_needed_as_well(pg_engine: Engine):
    done(pg_engine)
    expire(pg_engine)
    with Session(pg_engine) as session:
        fresh = ledger.begin(session, **OTHER)
        with pytest.raises(DBAPIError, match="must not commit"):
            session.execute(text("COMMIT"))
        with pytest.raises(TransactionRequired, match="is not open in this transaction"):
            ledger.complete(session, fresh, OK)
        session.rollback()
        fresh = ledger.begin(session, **OTHER)
        ledger.complete(session, fresh, OK)
        session.execute(text("COMMIT"))
    assert told(pg_engine, OTHER) == Replay(OK, fresh.expires_at)
