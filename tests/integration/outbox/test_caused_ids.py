"""Ids of messages that handlers add: another run for the same message, after a lost commit, gives the same ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, event, ids, inbox, inbox_handler, outbox, tables
from outboxkit.inbox.run_once import _warned

CAUSE = ids.new(at=datetime.now(UTC) - timedelta(days=3))


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


@event("Billed")
@dataclass(frozen=True)
class Billed:
    number: int


@inbox_handler("Bill", batch=True)
def bill(session: Session, event: Ordered) -> None:
    outbox.add(session, Billed(1), key="a")
    outbox.add(session, Ordered(1), key="a")
    outbox.add_all(session, [Billed(2), Billed(3)])
    outbox.add(session, Billed(4), message_id="mine")


@inbox_handler("Bill")
def bill_backwards(session: Session, event: Ordered) -> None:
    outbox.add_all(session, [Billed(2), Billed(3)])
    outbox.add(session, Ordered(1), key="a")
    outbox.add(session, Billed(1), key="a")
    outbox.add(session, Billed(4), message_id="mine")


@inbox_handler("Bill")
async def bill_async(session: AsyncSession, event: Ordered) -> None:
    bill(session, event)  # type: ignore[arg-type]


def message(id_: str = CAUSE, payload: bytes = b'{"number":7}') -> Message:
    return Message(id=id_, type="Ordered", payload=payload)


def take(engine: Engine) -> list[str]:
    """The ids in the outbox; then outbox and inbox are as if the transaction had never been."""
    with engine.begin() as connection:
        rows = connection.execute(select(tables.outbox).order_by(tables.outbox.c.position)).mappings().all()
        connection.execute(delete(tables.outbox))
        connection.execute(delete(tables.inbox))
    return [row["message_id"] for row in sorted(rows, key=lambda row: (row["type"], row["payload"]))]


def run(engine: Engine, handler: object, cause: Message) -> list[str]:
    with Session(engine) as session, session.begin():
        assert inbox.run_once(session, cause, handler) is Outcome.PROCESSED  # type: ignore[arg-type]
    return take(engine)


async def test_another_run_adds_the_same_ids(engine: Engine, async_engine: AsyncEngine):
    first = run(engine, bill, message())
    assert len(set(first)) == 5
    assert first[3] == "mine"
    assert run(engine, bill, message()) == run(engine, bill_backwards, message()) == first
    async with AsyncSession(async_engine) as session, session.begin():
        await session.run_sync(inbox.run_once, message(), bill_async)
    assert take(engine) == first
    with Session(engine) as batch, batch.begin():
        entries = [inbox.Entry.of(message(id_), inbox.handler_of(bill)) for id_ in ("other", CAUSE)]
        inbox.run_batch(batch, entries)
    assert set(first) < set(take(engine))


def test_they_sort_beside_their_cause_and_have_no_time_of_their_own(engine: Engine):
    id_ = run(engine, bill, message())[0]
    assert (UUID(id_).version, id_[:13]) == (8, CAUSE[:13])
    assert (ids.time_of(id_), ids.time_before(id_)) == (None, ids.time_of(CAUSE))
    assert [ids.derive_from(id_, "x")[:13], ids.derive_from("foreign", "x")] == [CAUSE[:13], ids.derive("foreign", "x")]


def test_a_message_that_is_due_later_does_not_have_the_time_of_its_cause(engine: Engine):
    """A message that adds itself again for the next day would keep the first day's partition for ever."""

    @inbox_handler("Remind")
    def remind(session: Session, event: Ordered) -> None:
        outbox.add(session, Ordered(1), deliver_at=datetime.now(UTC) + timedelta(days=1))

    (id_,) = run(engine, remind, message())
    assert UUID(id_).version == 5
    assert run(engine, remind, message()) == [id_]


def test_another_message_handler_or_database_has_others(engine: Engine):
    def renamed(session: Session, event: Ordered) -> None:
        bill(session, event)

    first = run(engine, bill, message())
    others = [run(engine, bill, message("other")), run(engine, inbox_handler("Bill2")(renamed), message())]
    with engine.begin() as connection:
        connection.execute(update(tables.schema_version).values(installation="another"))
    others.append(run(engine, bill, message()))
    assert all(set(first) & set(found) == {"mine"} for found in others)


@pytest.mark.parametrize("rows", [0, 2])
def test_handlers_run_whatever_became_of_the_row_with_the_installation(engine: Engine, rows: int):
    with engine.begin() as connection:
        connection.execute(delete(tables.schema_version))
        for version in range(rows):
            connection.execute(insert(tables.schema_version).values(version=version))
    first = run(engine, bill, message())
    with Session(engine) as session, session.begin():
        assert inbox.run_batch(session, [inbox.Entry.of(message(), inbox.handler_of(bill))]) == [Outcome.PROCESSED]
    assert take(engine) == first


def test_what_another_session_commits_has_a_new_id_each_time(engine: Engine):
    found: list[str] = []

    @inbox_handler("Notes")
    def notes(session: Session, event: Ordered) -> None:
        with Session(engine) as own:
            found.append(outbox.add(own, Billed(1)).id)
            own.rollback()

    run(engine, notes, message())
    run(engine, notes, message())
    assert [UUID(id_).version for id_ in found] == [7, 7]
    assert len(set(found)) == 2


@pytest.fixture
def _unwarned() -> Iterator[None]:
    _warned.clear()
    yield
    _warned.clear()


@pytest.mark.usefixtures("_unwarned")
def test_a_duplicate_with_another_payload_is_warned_of_once(engine: Engine, caplog: pytest.LogCaptureFixture):
    with Session(engine) as session, session.begin():
        for number, lines in ((7, 0), (7, 0), (8, 1), (9, 1), (7, 1)):
            inbox.run_once(session, message(payload=b'{"number":%d}' % number), bill)
            assert len(caplog.messages) == lines
    assert caplog.messages[0].startswith(f"two messages have the id '{CAUSE}': a duplicate of type Ordered has another")


@pytest.mark.usefixtures("_unwarned")
def test_in_a_batch_too(engine: Engine, caplog: pytest.LogCaptureFixture):
    with Session(engine) as session, session.begin():
        payloads = [b'{"number":7}', b'{"number":7}', b'{"number":8}']
        entries = [inbox.Entry.of(message(payload=each), inbox.handler_of(bill)) for each in payloads]
        assert inbox.run_batch(session, entries) == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.DUPLICATE]
    assert [CAUSE in line and "handler Bill had" in line for line in caplog.messages] == [True]
