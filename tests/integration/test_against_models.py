"""Random histories of sessions, inboxes and whole services do what a plain model in memory does."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.orm import Session

from outboxkit import Message, event, inbox, inbox_handler, metadata, outbox, tables
from outboxkit.brokers import CONFIRMED, KeyGate, Receipt, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.codec.headers import without_own
from outboxkit.consumer import Consumer, ConsumerPolicy
from outboxkit.database import engines
from outboxkit.inbox import Entry, Outcome
from outboxkit.operators.deadletters import DeadLetters, Resolved, Selection
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.runtime import process, workers
from tests.support.night import by_night
from tests.unit.shop import effects

HOUR = timedelta(hours=1)
ALWAYS = datetime(2100, 1, 1, tzinfo=UTC)
IDS = st.sampled_from("abcd")
QUEUE = "billing"


@event("Counted")
@dataclass(frozen=True)
class Counted:
    number: int


@pytest.fixture
def settled(database_url: str) -> Iterator[Engine]:
    """The engine that the machines compare with, and the table of effects in it."""
    made = create_engine(database_url)
    if made.dialect.name == "sqlite":
        engines.configure_sqlite(made)
    effects.create(made)
    yield made
    made.dispose()


def run(machine: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int = 30) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=by_night(12 * examples, else_=examples), stateful_step_count=steps)
    )


def empty(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in (effects, *reversed(metadata.sorted_tables)):
            if table.name != tables.schema_version.name:
                connection.execute(table.delete())


# The outbox: sessions, savepoints and options


@dataclass
class Row:
    id: str
    dedup: bool
    delayed: bool


class Outbox(RuleBasedStateMachine):
    """One session, with savepoints in savepoints."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self.session = engine, Session(engine)
        empty(engine)
        self.committed: list[Row] = []
        self.rows: list[Row] = []
        self.pending: list[Row] = []
        self.savepoints: list[tuple[Any, list[Row]]] = []

    def flush(self) -> None:
        for row in self.pending:
            if not (row.dedup and any(other.dedup and other.id == row.id for other in self.rows)):
                self.rows.append(row)
        self.pending = []

    @rule(id_=IDS, dedup=st.booleans(), delayed=st.booleans(), several=st.booleans())
    def add(self, id_: str, dedup: bool, delayed: bool, several: bool) -> None:
        options = {"message_id": id_, "dedup": dedup, "deliver_at": ALWAYS if delayed else None}
        if several:
            outbox.add_all(self.session, [Counted(1)], **options)
        else:
            outbox.add(self.session, Counted(1), **options)
        self.pending.append(Row(id_, dedup, delayed))

    @rule(id_=IDS)
    def cancel(self, id_: str) -> None:
        self.flush()
        gone = [row for row in self.rows if row.id == id_ and row.delayed]
        gone = gone or [row for row in self.rows if row.id == id_]
        assert outbox.cancel(self.session, id_) is bool(gone)
        self.rows = [row for row in self.rows if row not in gone]

    @rule()
    def flush_the_session(self) -> None:
        self.session.flush()
        self.flush()

    @rule()
    def expunge(self) -> None:
        self.session.expunge_all()
        self.pending = []

    @precondition(lambda self: len(self.savepoints) < 3)
    @rule()
    def begin_nested(self) -> None:
        self.flush()
        self.savepoints.append((self.session.begin_nested(), list(self.rows)))

    @precondition(lambda self: self.savepoints)
    @rule()
    def release(self) -> None:
        self.flush()
        self.savepoints.pop()[0].commit()

    @precondition(lambda self: self.savepoints)
    @rule()
    def roll_back_to_the_savepoint(self) -> None:
        savepoint, self.rows = self.savepoints.pop()
        savepoint.rollback()
        self.pending = []

    @rule(commits=st.booleans())
    def end(self, commits: bool) -> None:
        self.savepoints = []
        if commits:
            self.session.commit()
            self.flush()
            self.committed = list(self.rows)
        else:
            self.session.rollback()
            self.rows, self.pending = list(self.committed), []
        with self.engine.connect() as connection:
            found = connection.execute(select(tables.outbox.c.message_id).order_by(tables.outbox.c.position)).scalars()
            assert list(found) == [row.id for row in self.committed]

    def teardown(self) -> None:
        self.session.close()


def test_the_outbox_of_a_session_is_what_it_committed(settled: Engine):
    run(lambda: Outbox(settled), examples=15)


# The inbox: run_once and run_batch


class Failing(Exception):
    """The handler's own."""


@inbox_handler("One", batch=True)
def one(session: Session, event: Counted, message: Message) -> None:
    _work(session, "One", event, message)


@inbox_handler("Two", batch=True)
def two(session: Session, event: Counted, message: Message) -> None:
    _work(session, "Two", event, message)


def _work(session: Session, name: str, event: Counted, message: Message) -> None:
    session.execute(insert(effects).values(what=f"{name} {message.id}"))
    if event.number < 0:
        raise Failing


HANDLERS = {"One": inbox.handler_of(one), "Two": inbox.handler_of(two)}
Arrival = tuple[str, str, bool]
ARRIVALS = st.tuples(st.sampled_from(["One", "Two"]), IDS, st.sampled_from([False, False, False, True]))


def message_of(id_: str, number: int = 1) -> Message:
    return Message(id=id_, type="Counted", payload=b'{"number":%d}' % number, created_at=datetime.now(UTC))


class Inbox(RuleBasedStateMachine):
    """Messages that arrive in one session, which may roll back to savepoints or as a whole."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self.session = engine, Session(engine)
        empty(engine)
        self.committed: list[str] = []
        self.done: list[str] = []

    @rule(arrival=ARRIVALS, retries=st.booleans())
    def run_once(self, arrival: Arrival, retries: bool) -> None:
        name, id_, fails = arrival
        what, before = f"{name} {id_}", list(self.done)
        expected = Outcome.DUPLICATE if what in self.done else Outcome.PROCESSED
        self.begin()
        try:
            with self.session.begin_nested():
                outcome = inbox.run_once(self.session, message_of(id_, -1 if fails else 1), HANDLERS[name])
            assert outcome is expected
            assert not (fails and outcome is Outcome.PROCESSED)
            self.done = before if what in before else [*before, what]
        except Failing:
            assert fails
            assert expected is Outcome.PROCESSED
            if retries:
                assert inbox.run_once(self.session, message_of(id_), HANDLERS[name]) is Outcome.PROCESSED
                self.done.append(what)

    @rule(arrivals=st.lists(ARRIVALS, max_size=5))
    def run_batch(self, arrivals: Sequence[Arrival]) -> None:
        entries = [Entry.of(message_of(id_, -1 if fails else 1), HANDLERS[name]) for name, id_, fails in arrivals]
        new: list[str] = []
        expected, failing = [], None
        for index, (name, id_, fails) in enumerate(arrivals):
            what = f"{name} {id_}"
            is_new = what not in self.done and what not in new
            expected.append(Outcome.PROCESSED if is_new else Outcome.DUPLICATE)
            if is_new:
                new.append(what)
                if fails and failing is None:
                    failing = index
        self.begin()
        failed = None
        try:
            with self.session.begin_nested():
                assert inbox.run_batch(self.session, entries) == expected
            self.done += new
        except inbox.BatchEntryFailed as error:
            failed = error.index
        assert failed == failing

    @rule(commits=st.booleans())
    def end(self, commits: bool) -> None:
        if commits:
            self.session.commit()
            self.committed = list(self.done)
        else:
            self.session.rollback()
            self.done = list(self.committed)
        with self.engine.connect() as connection:
            found = connection.execute(select(effects.c.what).order_by(effects.c.id)).scalars()
            assert list(found) == self.committed
            rows = connection.execute(select(tables.inbox.c.handler, tables.inbox.c.message_id))
            assert sorted(f"{handler} {id_}" for handler, id_ in rows) == sorted(self.committed)

    def begin(self) -> None:
        if not self.session.in_transaction():
            self.session.begin()

    def teardown(self) -> None:
        self.session.close()


def test_the_inbox_has_what_its_transactions_committed(settled: Engine):
    run(lambda: Inbox(settled), examples=15)


# A service: outbox, relay, broker, consumer, dead letters and pauses


class Refusing(MemoryPublisher):
    """A publisher to a broker that rejects the messages of some numbers."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.broker = broker
        self.refused: set[int] = set()
        self.sent: dict[int, Message] = {}

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        gate, receipts = KeyGate(), []
        for index, message in enumerate(batch):
            receipt = gate.refuse(index, message)
            if receipt is None and int(message.id) in self.refused:
                receipt = Receipt(Verdict.REJECTED, "refused")
            elif receipt is None:
                (receipt,) = await super().publish([message])
                self.sent[int(message.id)] = replace(message, headers=without_own(message.headers), queue=None)
            if receipt is not CONFIRMED:
                gate.fail(index, message)
            receipts.append(receipt)
        return receipts


@dataclass
class Waiting:
    """A row of the outbox, or its dead letter."""

    place: int
    number: int
    key: str | None
    failures: int = 0


@dataclass
class Model:
    """What should be where; a message is a number."""

    outbox: list[Waiting] = field(default_factory=list)
    dead: list[Waiting] = field(default_factory=list)
    """Dead letters of the outbox."""
    queue: list[int] = field(default_factory=list)
    buried: list[int] = field(default_factory=list)
    """Dead letters of the inbox, one of a message."""
    handled: list[int] = field(default_factory=list)
    discarded: set[int] = field(default_factory=set)
    """Messages that the inbox has without having handled them."""

    def relay(self, refused: set[int]) -> None:
        blocked: set[str | None] = set()
        for row in sorted(self.outbox, key=lambda row: row.place):
            parked = any(other.key == row.key and other.place < row.place for other in self.dead)
            if row.key is not None and (row.key in blocked or parked):
                continue
            if row.number not in refused:
                self.outbox.remove(row)
                self.queue.append(row.number)
            elif row.failures == 0:
                row.failures = 1
                blocked.add(row.key)
            else:
                self.outbox.remove(row)
                self.dead.append(row)

    def consume(self, failing: set[int]) -> None:
        for number in self.queue:
            if number not in self.handled and number not in self.discarded:
                place = self.buried if number in failing else self.handled
                if number not in place:
                    place.append(number)
        self.queue = []

    def replay(self, numbers: set[int], key: dict[int, str | None], places: Iterator[int]) -> None:
        for row in [row for row in self.dead if row.number in numbers]:
            self.dead.remove(row)
            self.outbox.append(Waiting(row.place, row.number, row.key))
        for number in [number for number in self.buried if number in numbers]:
            self.buried.remove(number)
            self.outbox.append(Waiting(next(places), number, key[number]))

    def discard(self, numbers: set[int]) -> None:
        self.dead = [row for row in self.dead if row.number not in numbers]
        self.discarded |= numbers & {*self.buried} - {*self.handled}
        self.buried = [number for number in self.buried if number not in numbers]


ADDED = st.lists(
    st.tuples(st.sampled_from(["k", None]), st.sampled_from(["", "refused", "fails"])), min_size=3, max_size=6
)


class Service(RuleBasedStateMachine):
    """One service in steps, each of which ends before the next one begins."""

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__()
        empty(engine)
        self.sync, self.runner = engine, asyncio.Runner()
        self.engine = process.engine(url, name="test")
        self.publisher = Refusing(MemoryBroker())
        self.queue = MemorySubscriber(self.publisher.broker, QUEUE, ["#"]).queue
        self.now, self.places = datetime.now(UTC), count(1)
        self.model, self.failing = Model(), set[int]()
        self.keys: dict[int, str | None] = {}

        @inbox_handler("Count")
        async def work(session: Any, event: Counted) -> None:
            await session.execute(insert(effects).values(what=str(event.number)))
            if event.number in self.failing:
                raise Failing

        self.handler = inbox.handler_of(work)

    @initialize(added=ADDED)
    def begin(self, added: list[tuple[str | None, str]]) -> None:
        self.add_messages(added, commits=True)

    @rule(added=ADDED, commits=st.booleans())
    def add(self, added: list[tuple[str | None, str]], commits: bool) -> None:
        self.add_messages(added, commits)

    def add_messages(self, added: list[tuple[str | None, str]], commits: bool) -> None:
        with Session(self.sync) as session:
            for key, fate in added:
                number = len(self.keys) + 1
                self.keys[number] = key
                outbox.add(session, Counted(number), key=key, message_id=str(number))
                if commits:
                    self.model.outbox.append(Waiting(next(self.places), number, key))
                if fate:
                    (self.publisher.refused if fate == "refused" else self.failing).add(number)
            session.flush()
            if commits:
                session.commit()

    @rule(times=st.integers(1, 3), is_paused=st.sampled_from([False, False, False, True]))
    def relay(self, times: int, is_paused: bool) -> None:
        for _ in range(times):
            self.now += HOUR
            relay = Relay(
                self.engine, self.publisher, policy=RelayPolicy(max_attempts=2), clock=lambda: self.now, batch_size=3
            )
            with self.paused(workers.RELAY, "default", is_paused):
                self.runner.run(relay.drain(asyncio.Event(), patience=timedelta(seconds=1)))
            if not is_paused:
                self.model.relay(self.publisher.refused)

    @rule(is_paused=st.sampled_from([False, False, False, True]))
    def consume(self, is_paused: bool) -> None:
        subscriber = MemorySubscriber(self.publisher.broker, QUEUE, ["#"])
        policy = ConsumerPolicy(max_attempts=1)
        consumer = Consumer(self.engine, subscriber, [self.handler], queue=QUEUE, policy=policy)
        with self.paused(workers.CONSUMER, QUEUE, is_paused):
            self.runner.run(consumer.drain(asyncio.Event()))
        if not is_paused:
            self.model.consume(self.failing)

    @contextmanager
    def paused(self, kind: str, name: str, is_paused: bool) -> Iterator[None]:
        if not is_paused:
            yield
            return
        with self.sync.begin() as connection:
            pause_process(connection, kind, name, why="a test")
        yield
        with self.sync.begin() as connection:
            assert resume_process(connection, kind, name) is not None

    @precondition(lambda self: self.publisher.sent)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        again = sorted(self.publisher.sent)
        number = data.draw(st.sampled_from(again) | st.sampled_from(sorted(self.model.discarded) or again))
        self.queue.put(self.publisher.sent[number])
        self.model.queue.append(number)

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def heal(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.keys)))
        self.publisher.refused.discard(number)
        self.failing.discard(number)

    @precondition(lambda self: self.model.dead or self.model.buried)
    @rule(data=st.data(), as_=st.sampled_from(["replayed", "discarded"]))
    def resolve(self, data: st.DataObject, as_: Any) -> None:
        dead = sorted({*(row.number for row in self.model.dead), *self.model.buried})
        numbers = data.draw(st.sets(st.sampled_from(dead), min_size=1, max_size=2))
        selection, done = Selection(message_ids=tuple(map(str, sorted(numbers)))), Resolved()
        self.runner.run(DeadLetters(self.engine).resolve(as_, selection, asyncio.Event(), done))
        assert (done.complete, done.refused) == (True, {})
        if as_ == "replayed":
            self.model.replay(numbers, self.keys, self.places)
        else:
            self.model.discard(numbers)

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        is_open = tables.dead_letter.c.resolution.is_(None)
        with self.sync.connect() as connection:
            waiting = connection.execute(select(tables.outbox.c.message_id)).scalars().all()
            dead = connection.execute(select(tables.dead_letter.c.side, tables.dead_letter.c.message_id).where(is_open))
            found = sorted((side, int(id_)) for side, id_ in dead)
            handled = connection.execute(select(effects.c.what)).scalars().all()
        model = self.model
        assert sorted(map(int, waiting)) == sorted(row.number for row in model.outbox)
        assert found == sorted(
            [("inbox", number) for number in model.buried] + [("outbox", row.number) for row in model.dead]
        )
        assert sorted(map(int, handled)) == sorted(model.handled)
        queued = [int(entry.message.id) for entry in self.queue.ready]
        assert sorted(queued) == sorted(model.queue)
        assert self._of_key("k", queued) == self._of_key("k", model.queue), "others may pass one that waits for its key"

    def _of_key(self, key: str, numbers: list[int]) -> list[int]:
        return [number for number in numbers if self.keys[number] == key]

    def teardown(self) -> None:
        self.runner.run(self.engine.dispose())
        self.runner.close()


def test_a_service_has_each_message_where_the_model_has_it(settled: Engine, database_url: str):
    run(lambda: Service(settled, database_url), examples=6)
