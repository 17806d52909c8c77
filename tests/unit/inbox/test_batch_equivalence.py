"""A batch is the same as one by one: whatever arrives, how often, for whom, and whatever fails."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, delete, event, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, registry
from sqlalchemy.pool import StaticPool

from outboxkit import Outcome, TransactionRequired, inbox, inbox_handler, outbox, tables
from outboxkit.inbox import BatchEntryFailed, Entry, Handler, handler_of, run_batch
from tests.support.night import by_night
from tests.unit.shop import OrderConfirmed, message

metadata = MetaData()
effects = Table("effects", metadata, Column("id", Integer, primary_key=True), Column("what", String))
kinds = Table("kinds", metadata, Column("id", Integer, primary_key=True), Column("what", String, unique=True))


class Kind:
    def __init__(self, what: str) -> None:
        self.what = what


registry().map_imperatively(Kind, kinds)


def handler(name: str, act: Callable[[Session, str], object]) -> Handler:
    @inbox_handler(name, batch=True)
    def handle(session: Session, event: OrderConfirmed, message) -> None:
        session.execute(insert(effects).values(what=f"{name} {message.id}"))
        outbox.add(session, event, key=message.id)
        act(session, message.id)

    return handler_of(handle)


def raises_on_even(session: Session, id_: str) -> None:
    if int(id_) % 2 == 0:
        raise ZeroDivisionError


def undoes_in_part(session: Session, id_: str) -> None:
    savepoint = session.begin_nested()
    session.execute(insert(effects).values(what=f"undone {id_}"))
    savepoint.rollback()


def leaves_one_of_three(session: Session, id_: str) -> None:
    """Its error is one of the flush."""
    session.add(Kind(str(int(id_) % 3)))


def ends_on_one(session: Session, id_: str) -> None:
    if id_ == "1":
        session.rollback()


def commits_on_two(session: Session, id_: str) -> None:
    if id_ == "2":
        session.commit()


HANDLERS = [
    handler("Plain", lambda *_: None),
    handler("Even", raises_on_even),
    handler("Undoes", undoes_in_part),
    handler("Unique", leaves_one_of_three),
    handler("RollsBack", ends_on_one),
    handler("Commits", commits_on_two),
]
DELIVERIES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(HANDLERS), st.integers(1, 3)), max_size=12)


@pytest.fixture(scope="module")
def shops() -> Iterator[tuple[Engine, Engine]]:
    """Two databases in memory."""
    made = [create_engine("sqlite://", poolclass=StaticPool, connect_args={"isolation_level": None}) for _ in range(2)]
    for each in made:
        event.listen(each, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        metadata.create_all(each)
        tables.metadata.create_all(each)
    yield made[0], made[1]
    for each in made:
        each.dispose()


def empty(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in (effects, kinds, tables.inbox, tables.outbox):
            connection.execute(delete(table))


def one_by_one(engine: Engine, entries: Sequence[Entry]) -> list[Outcome]:
    outcomes = []
    for each in entries:
        try:
            with Session(engine) as session, session.begin():
                outcomes.append(inbox.run_once(session, each.message, each.handler, attempt=each.attempt))
        except (ZeroDivisionError, IntegrityError, TransactionRequired):
            outcomes.append(Outcome.RETRIED)
    return outcomes


def in_batches(engine: Engine, entries: Sequence[Entry]) -> list[Outcome]:
    """A batch, or its pieces down to the one that fails: in the order of the entries."""
    if len(entries) < 2:
        return one_by_one(engine, entries)
    try:
        with Session(engine) as session, session.begin():
            return run_batch(session, entries)
    except BatchEntryFailed as failed:
        first, last = failed.index, failed.index + 1
    except IntegrityError:
        first = last = len(entries) // 2
    pieces = entries[:first], entries[first:last], entries[last:]
    return [outcome for piece in pieces for outcome in in_batches(engine, piece)]


def state(engine: Engine) -> list[object]:
    added = tables.outbox.c
    asked = [
        select(tables.inbox.c["handler", "message_id", "attempts"]).order_by("handler", "message_id"),
        select(effects.c.what).order_by("what"),
        select(kinds.c.what).order_by("what"),
        select(added["payload", "key", "causation_id", "correlation_id"]).order_by(added.key),
    ]
    with engine.connect() as connection:
        return [[tuple(row) for row in connection.execute(statement)] for statement in asked]


@settings(max_examples=by_night(1000, else_=40))
@given(drawn=DELIVERIES)
def test_a_batch_is_the_same_as_one_by_one(shops: tuple[Engine, Engine], drawn: list[tuple[int, Handler, int]]):
    entries = [Entry.of(message(id=str(number)), found, attempt=attempt) for number, found, attempt in drawn]
    first, second = shops
    for engine in shops:
        empty(engine)
    assert in_batches(first, entries) == one_by_one(second, entries)
    assert state(first) == state(second)
