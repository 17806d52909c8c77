"""Locks of `strict_order` and `dedup`: any number of keys in few locks, and what two flushes in opposite order do."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from outboxkit import outbox, statements
from tests.integration.outbox.test_outbox_writers import Moved, Ordered, added, payloads, waiting
from tests.support.polling import DEADLINE_SECONDS, eventually


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


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
    both_inside, winner_committed = Barrier(2), Event()

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
        winner_committed.set()

    def once(names: tuple[str, str]) -> str | None:
        try:
            write(names, after_first=both_inside.wait)
        except OperationalError as error:
            assert winner_committed.wait(DEADLINE_SECONDS)  # else both could meet a second time
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
