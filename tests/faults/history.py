"""A history of messages under faults, and the checker that judges it.

Pure: the soak writes a history down, `judge` finds what breaks a promise. Times are seconds of one clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Committed:
    """A message whose transaction is committed.

    Attributes:
        subject: what it is about; no two messages have the same.
        step: its place among the messages of its key.
        handlers: those that must handle it.
        ordered: those of them that must keep the order of its key.
        fails: whether it is meant to fail, so that it may become a dead letter.
    """

    id: str
    subject: str
    at: float
    key: str = ""
    step: int = 0
    handlers: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    fails: bool = False


@dataclass(frozen=True)
class Published:
    """A copy at the queue that gets everything; histories list copies in the order of that queue."""

    id: str
    subject: str


@dataclass(frozen=True)
class Handled:
    """A row that a handler wrote in its transaction; `attempts` is what the inbox counted."""

    id: str
    handler: str
    at: float
    attempts: int = 1


@dataclass(frozen=True)
class Dead:
    """A dead letter; `resolution` is what an operator did to it: replayed, discarded or nothing yet."""

    id: str
    handler: str
    reason: str
    at: float
    resolution: str | None = None


@dataclass(frozen=True)
class Fault:
    """A time in which something was broken."""

    name: str
    began: float
    ended: float


@dataclass(frozen=True)
class Rules:
    """What a history is held against.

    Attributes:
        window: seconds after which a delivery is stale.
        patience: seconds that work may rest beyond the faults.
    """

    window: float = 7 * 86_400
    patience: float = 30


@dataclass
class History:
    """All that is known at the end, when nothing is left to do.

    Attributes:
        left: ids that are still in the outbox.
        held: what processes that have ended still hold in the database: a session with its locks.
    """

    committed: list[Committed] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """A promise that was broken, and by what."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


RULES = Rules()


def judge(history: History, rules: Rules = RULES) -> list[Verdict]:
    """All that breaks a promise; empty for a good history."""
    judged = _Judged(history)
    return [
        *_lost(judged),
        *_invented(judged),
        *_doubled(judged),
        *_inverted(judged),
        *_identity_changed(judged),
        *_attempts_burnt(judged),
        *_dead_without_cause(judged),
        *_stale_handled(judged, rules.window),
        *_parked_for_ever(judged),
        *(Verdict("held after death", each) for each in history.held),
        *_gaps(judged, rules.patience),
    ]


class _Judged:
    """A history with what several verdicts ask of it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.committed: Mapping[str, Committed] = {each.id: each for each in history.committed}
        self.published = {each.id for each in history.published}
        self.handled = {(each.id, each.handler) for each in history.handled}
        self.dead = {(each.id, each.handler) for each in history.dead}
        self.given_up = {(each.id, each.handler) for each in history.dead if each.resolution == "discarded"}
        self.left = set(history.left)


def _lost(judged: _Judged) -> Iterator[Verdict]:
    done = judged.handled | judged.given_up
    for message in judged.history.committed:
        if message.id not in judged.published:
            yield Verdict("lost", f"{message.subject} was committed and never published")
        for handler in message.handlers:
            if (message.id, handler) not in done:
                yield Verdict("lost", f"{message.subject} was not handled by {handler}")


def _invented(judged: _Judged) -> Iterator[Verdict]:
    for id_ in sorted(judged.published - judged.committed.keys()):
        yield Verdict("invented", f"{id_} was published and never committed")
    for id_, handler in sorted(judged.handled):
        if id_ not in judged.committed or handler not in judged.committed[id_].handlers:
            yield Verdict("invented", f"{id_} was handled by {handler}, which nothing committed asked for")


def _doubled(judged: _Judged) -> Iterator[Verdict]:
    times: dict[tuple[str, str], int] = defaultdict(int)
    for row in judged.history.handled:
        times[row.id, row.handler] += 1
    for (id_, handler), count in times.items():
        if count > 1:
            yield Verdict("doubled", f"{id_} was handled {count} times by {handler}")


def _inverted(judged: _Judged) -> Iterator[Verdict]:
    """The first copy of each message counts; a message that was dead in between may be late at its handlers."""
    first_copies = dict.fromkeys(each.id for each in judged.history.published)
    yield from _falling(judged, first_copies, "published")
    by_handler: dict[str, list[str]] = defaultdict(list)
    for row in sorted(judged.history.handled, key=lambda row: row.at):
        message = judged.committed.get(row.id)
        if message is not None and row.handler in message.ordered and (row.id, row.handler) not in judged.dead:
            by_handler[row.handler].append(row.id)
    for handler, ids in by_handler.items():
        yield from _falling(judged, ids, f"handled by {handler}")


def _falling(judged: _Judged, ids: Iterable[str], what: str) -> Iterator[Verdict]:
    last: dict[str, Committed] = {}
    for id_ in ids:
        message = judged.committed.get(id_)
        if message is None or not message.key:
            continue
        before = last.get(message.key)
        if before is not None and before.step > message.step:
            yield Verdict("inverted", f"{message.subject} was {what} after {before.subject}, the later one")
        else:
            last[message.key] = message


def _identity_changed(judged: _Judged) -> Iterator[Verdict]:
    ids: dict[str, set[str]] = defaultdict(set)
    for copy in judged.history.published:
        ids[copy.subject].add(copy.id)
        message = judged.committed.get(copy.id)
        if message is not None and message.subject != copy.subject:
            yield Verdict("identity changed", f"{copy.id} was {message.subject} and is {copy.subject}")
    for subject, found in ids.items():
        if len(found) > 1:
            yield Verdict("identity changed", f"{subject} has the ids {', '.join(sorted(found))}")


def _attempts_burnt(judged: _Judged) -> Iterator[Verdict]:
    for row in judged.history.handled:
        message = judged.committed.get(row.id)
        if message is not None and not message.fails and row.attempts > 1:
            yield Verdict("attempt burnt", f"{message.subject} took {row.handler} {row.attempts} attempts")


def _dead_without_cause(judged: _Judged) -> Iterator[Verdict]:
    for letter in judged.history.dead:
        message = judged.committed.get(letter.id)
        if message is None or not message.fails:
            yield Verdict("dead without cause", f"{message.subject if message else letter.id}: {letter.reason}")


def _stale_handled(judged: _Judged, window: float) -> Iterator[Verdict]:
    for row in judged.history.handled:
        message = judged.committed.get(row.id)
        if message is not None and row.at - message.at > window:
            yield Verdict("stale handled", f"{message.subject} by {row.handler}, {row.at - message.at:.0f} s old")


def _parked_for_ever(judged: _Judged) -> Iterator[Verdict]:
    for id_ in judged.history.left:
        yield Verdict("parked for ever", f"{id_} is still in the outbox")
    for letter in judged.history.dead:
        if letter.resolution is None:
            yield Verdict("parked for ever", f"{letter.id} is still a dead letter of {letter.handler}")


def _gaps(judged: _Judged, patience: float) -> Iterator[Verdict]:
    """A handler rests although a message waits for it, for longer than faults and patience explain."""
    rows: dict[str, list[Handled]] = defaultdict(list)
    for row in judged.history.handled:
        message = judged.committed.get(row.id)
        if message is not None and not message.fails:
            rows[row.handler].append(row)
    for handler, found in rows.items():
        found.sort(key=lambda row: row.at)
        oldest = [judged.committed[row.id].at for row in found]
        for place in range(len(oldest) - 2, -1, -1):  # the oldest of those that are handled from here on
            oldest[place] = min(oldest[place], oldest[place + 1])
        ends = [oldest[0], *(row.at for row in found)]
        for (end, start), waiting in zip(pairwise(ends), oldest, strict=True):
            began = max(end, waiting)
            rest = start - began - _broken(judged.history.faults, began, start)
            if rest > patience:
                yield Verdict("gap", f"{handler} rested for {rest:.1f} s beyond the faults before {start:.1f}")


def _broken(faults: Sequence[Fault], began: float, ended: float) -> float:
    """Seconds of this time in which at least one fault lasted."""
    total, reached = 0.0, began
    for fault in sorted(faults, key=lambda fault: fault.began):
        start, end = max(fault.began, reached), min(fault.ended, ended)
        if end > start:
            total, reached = total + end - start, end
    return total
