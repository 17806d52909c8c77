"""When a message is too old to be handled."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit import ids, inbox, inbox_handler, tables
from outboxkit.inbox import Entry, handler_of, is_stale
from tests.unit.shop import NOW, OrderConfirmed, message, rows

DAY, SKEW = timedelta(days=1), timedelta(minutes=5)
WINDOW = DAY - SKEW


@pytest.mark.parametrize(
    ("made", "stale"),
    [(NOW - WINDOW, False), (NOW - WINDOW - timedelta(milliseconds=1), True), (NOW, False), (NOW + 30 * DAY, False)],
)
def test_a_message_is_stale_as_soon_as_its_row_may_be_gone_by_any_clock(made, stale: bool):
    by_id = message(id=ids.new(at=made), created_at=None)
    by_time = message(id="of-a-foreign-client", created_at=made)
    assert is_stale(by_id, now=NOW, retention=DAY, skew=SKEW) is stale
    assert is_stale(by_time, now=NOW, retention=DAY) is stale, "the skew of the settings is what is taken"


def test_a_uuidv7_tells_the_time_whatever_the_timestamp_says():
    assert is_stale(message(id=ids.new(at=NOW - DAY), created_at=NOW), now=NOW, retention=DAY)
    assert not is_stale(message(id=ids.new(at=NOW), created_at=NOW - DAY), now=NOW, retention=DAY)


def test_what_was_accepted_is_counted_from_there():
    old = message(id=ids.new(at=NOW - 9 * DAY), created_at=None)
    assert not is_stale(old, now=NOW, retention=DAY, accepted_at=NOW - WINDOW)
    assert is_stale(old, now=NOW + SKEW, retention=DAY, accepted_at=NOW - WINDOW)


@inbox_handler("Works", batch=True)
def works(session: Session, event: OrderConfirmed) -> None: ...


@pytest.mark.parametrize("batch", [False, True])
def test_what_was_accepted_is_remembered_from_there(engine: Engine, database_url: str, *, batch: bool):
    soon = datetime.now(UTC) + timedelta(hours=1)  # by a clock that is ahead of the database's
    old = message(id=ids.new(at=NOW - 9 * DAY))
    with Session(engine) as session, session.begin():
        if batch:
            inbox.run_batch(session, [Entry.of(old, handler_of(works), accepted_at=soon)])
        else:
            inbox.run_once(session, old, works, accepted_at=soon)
    (row,) = rows(database_url, tables.inbox)
    assert row["processed_at"] == soon


def test_a_message_without_any_time_is_new():
    assert not is_stale(message(id="a", created_at=None), now=NOW, retention=DAY)


@given(st.uuids(), st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_every_id_has_an_answer(id_: object, retention: timedelta):
    assert is_stale(message(id=str(id_), created_at=None), now=NOW, retention=retention) in (True, False)
