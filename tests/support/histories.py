"""Histories of messages, consumers and pruners in any order, for the proof of the window: drawn, then played."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Protocol

from hypothesis import strategies as st

from outboxkit import ids
from outboxkit.runtime import window

START = datetime(2100, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Inbox(Protocol):
    """What remembers: a dict, or the tables."""

    def record(self, message_id: str, made: datetime, now: datetime) -> bool:
        """Insert a row; whether it is new."""

    def forget(self, before: datetime, now: datetime, luck: int) -> None:
        """Forget some of what may be forgotten, or all of it."""


@dataclass(frozen=True)
class Sent:
    """A message as it travels: any number of copies of it arrive."""

    id: str
    timestamp: datetime | None
    accepted_at: datetime | None = None


@dataclass
class History:
    """Plays steps against an inbox, with the real rules; `effects` counts by message and acceptance."""

    inbox: Inbox
    retention: timedelta
    skew: timedelta
    now: datetime = START
    sent: list[Sent] = field(default_factory=list)
    effects: Counter[Sent] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def play(self, steps: list[tuple[Any, ...]]) -> None:
        """Every step in its order; after each, no message has had two effects."""
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
            assert all(count <= 1 for count in self.effects.values()), (self.effects, steps)

    def send(self, offset: timedelta, foreign: bool) -> None:
        """A producer's clock is off by the offset, or the message is to be delivered then."""
        at = self.now + offset
        number = len(self.sent)
        self.sent.append(Sent(f"foreign-{number}", at) if foreign else Sent(ids.new(at=at), None))

    def deliver(self, which: int, error: float) -> None:
        """A copy arrives; the consumer's idea of the database's time is off by so many skews."""
        if not self.sent:
            return
        message = self.sent[which % len(self.sent)]
        made = window.message_time(message.id, message.timestamp, message.accepted_at)
        assert made is not None
        judged = self.now + self.skew * error
        if window.is_too_old(made, now=judged, retention=self.retention, skew=self.skew):
            self.outcomes["stale"] += 1
        elif self.inbox.record(message.id, made, self.now):
            self.effects[message] += 1
            self.outcomes["processed"] += 1
        else:
            self.outcomes["duplicate"] += 1

    def accept(self, which: int) -> None:
        """An operator sends it again although it is stale: it is dated anew, and may have one effect more."""
        if self.sent:
            again = self.sent[which % len(self.sent)]
            self.sent.append(Sent(again.id, again.timestamp, self.now))

    def wait(self, span: timedelta) -> None:
        """Time passes: an outage, a retry, a message that lies in its queue."""
        self.now += span

    def prune(self, delay: timedelta, luck: int) -> None:
        """The pruner asks for the time, and deletes later."""
        before = window.forget_before(self.now, retention=self.retention, skew=self.skew)
        self.now += delay
        self.inbox.forget(before, self.now, luck)


def spans(lowest: int, highest: int, unit: timedelta) -> st.SearchStrategy[timedelta]:
    """So many whole units: few, so that moments meet."""
    return st.integers(lowest, highest).map(lambda number: number * unit)


def plays(unit: timedelta) -> st.SearchStrategy[tuple[timedelta, timedelta, list[tuple[Any, ...]]]]:
    """A retention of a few units, a skew of fewer, and steps that are long enough to cross the window."""
    which, errors = st.integers(0, 2), st.sampled_from([0.0, -2.0, 2.0, 1.0])
    deliver = st.tuples(st.just("deliver"), which, errors)
    wait = st.tuples(st.just("wait"), spans(0, 14, unit))
    send = st.tuples(st.just("send"), st.one_of(spans(-2, 2, unit), spans(-300, 300, unit)), st.booleans())
    prune = st.tuples(st.just("prune"), spans(0, 1, unit), st.sampled_from([7, 5, 3, 1, 4]))
    accept = st.tuples(st.just("accept"), which)
    life = st.tuples(send, deliver, wait, prune, deliver)
    again = st.tuples(wait, accept, deliver, wait, prune, deliver)
    anything = st.tuples(st.one_of(deliver, wait, send, prune, accept))
    steps = st.lists(st.one_of(life, again, anything), max_size=12).map(lambda parts: [*chain.from_iterable(parts)])
    return st.tuples(spans(4, 10, unit), spans(0, 3, unit), steps)


ACCEPTED = [
    ("send", timedelta(0), False),
    ("prune", timedelta(0), 7),
    ("wait", timedelta(days=11)),
    ("deliver", 0, 0.0),
    ("accept", 0),
    ("deliver", 1, 0.0),
    ("wait", timedelta(days=1)),
    ("prune", timedelta(0), 7),
    ("deliver", 1, 0.0),
    ("deliver", 0, 0.0),
]
"""An old message that is handled all the same: its row keeps a day that is over, for ten days and a skew of one."""
