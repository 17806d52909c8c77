"""The trace of each message, put together from the rows of all databases. Pure; `--json` prints these names."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row

from outboxkit import ids
from outboxkit.codec.rows import decode_headers
from outboxkit.errors.figures import in_utc, many
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.trace import reasons
from outboxkit.operators.trace.reading import ASSUMED_RETENTION, DatabaseRows, TraceQuery
from outboxkit.operators.trace.reasons import Explanation, legible

ORDER = ("waiting", "dead", "retried", "started", "not handled", "published", "handled", "discarded", "replayed")
"""The states, the most important one first."""
UNDONE = ORDER[:4]
"""The states of messages that wait, or for which somebody has to do something."""
_PROPERTIES = ("type", "key", "destination", "queue", "correlation_id", "causation_id", "created_at")
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of the timeline.

    Attributes:
        at: when, by the clock of the database that says so; None if it is not known.
        what: `added`, `refused`, `published`, `handled`, `failed`, `started`, `dead`, `replayed` or `discarded`.
        text: a line about it.
        database: the database whose tables say so; None for what the message itself says.
    """

    at: datetime | None
    what: str
    text: str
    database: str | None


@dataclass(frozen=True, slots=True)
class Caused:
    """A message that a handler of the traced one added."""

    message_id: str
    type: str | None
    state: str


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The trace of one message.

    Attributes:
        state: one of `ORDER`.
        handled_by: the number of handlers that have handled it.
        handlers: the number of handlers that have handled it, or were there to take it.
        unknown: what the tables do not tell, and the setting that would have kept it.
    """

    message_id: str
    type: str | None
    key: str | None
    destination: str | None
    queue: str | None
    correlation_id: str | None
    causation_id: str | None
    trace_id: str | None
    state: str
    handled_by: int
    handlers: int
    why: tuple[Explanation, ...]
    timeline: tuple[Event, ...]
    caused: tuple[Caused, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The answer to a query: `more` counts messages that are not shown, `not_read` has databases or parts of them."""

    asked: dict[str, str]
    databases: tuple[str, ...]
    messages: tuple[MessageTrace, ...]
    more: int
    not_read: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def tree(self) -> list[tuple[int, MessageTrace]]:
        """Its messages with their depth: each below the one whose handler added it, if that is among them."""
        known, children = {each.message_id for each in self.messages}, defaultdict[str | None, list[MessageTrace]](list)
        for each in self.messages:
            cause = each.causation_id
            children[cause if cause in known and cause != each.message_id else None].append(each)
        rows, stack = list[tuple[int, MessageTrace]](), [(0, each) for each in reversed(children.pop(None, ()))]
        while stack:
            depth, one = stack.pop()
            rows.append((depth, one))
            stack += [(depth + 1, each) for each in reversed(children.pop(one.message_id, ()))]
        return rows + [(0, each) for each in chain(*children.values())]  # foreign ones that caused each other


@dataclass(slots=True)
class _Part:
    """The rows of one message in one database."""

    database: DatabaseRows
    waiting: list[Row[Any]]
    kept: list[Row[Any]]
    letters: list[Row[Any]]
    handled: list[Row[Any]]
    crashes: list[Row[Any]]


def assemble(query: TraceQuery, databases: Sequence[DatabaseRows], away: Sequence[str] = ()) -> Trace:
    """The traces of all messages of the query, the oldest first; of a key those first that wait, then the newest.

    `away` has the databases that could not be read, with their errors.
    """
    parts = _parts_of(databases)
    messages = {id_: _merged(id_, of) for id_, of in parts.items()}
    children = defaultdict[str, list[str]](list)
    for id_, message in messages.items():
        if message.causation_id not in (None, id_):
            children[message.causation_id].append(id_)
    selected = [id_ for id_, message in messages.items() if query.selects(id_, message)]
    drafts = {id_: _Draft(messages[id_], parts[id_]) for id_ in messages}
    selected = [id_ for id_ in selected if query.since is None or drafts[id_].first >= query.since]
    selected.sort(key=lambda id_: (drafts[id_].first, id_), reverse=query.key is not None)
    if query.key is not None:
        undone = [id_ for id_ in reversed(selected) if drafts[id_].state in UNDONE]
        selected = undone + [id_ for id_ in selected if drafts[id_].state not in UNDONE]
    names = {"message_id": query.message_id, "key": query.key, "correlation_id": query.correlation_id}
    return Trace(
        asked={name: value for name, value in names.items() if value is not None},
        databases=tuple(database.name for database in databases),
        messages=tuple(
            drafts[id_].finish([drafts[child] for child in children[id_]]) for id_ in selected[: query.limit]
        ),
        more=len(selected[query.limit :]),
        not_read=(*away, *(f"{rest} in {database.name}" for database in databases for rest in database.unread)),
        unknown=() if selected else tuple(_nothing(query, databases, is_alone=len(databases) == 1 and not away)),
    )


def _parts_of(databases: Sequence[DatabaseRows]) -> dict[str, list[_Part]]:
    """The rows of each message, one part for each database."""
    parts = defaultdict[str, list[_Part]](lambda: [_Part(each, [], [], [], [], []) for each in databases])
    for number, database in enumerate(databases):
        for name in ("waiting", "kept", "letters", "handled", "crashes"):
            rows = getattr(database, name)
            for row in rows.values() if isinstance(rows, dict) else rows:
                if row.message_id is not None:
                    getattr(parts[row.message_id][number], name).append(row)
    return parts


def _merged(id_: str, parts: Sequence[_Part]) -> Any:
    """The first value of each property: of the producer's rows, then of dead letters."""
    rows = [row for name in ("waiting", "kept", "letters") for part in parts for row in getattr(part, name)]
    values: dict[str, Any] = {
        name: next((value for row in rows if (value := getattr(row, name)) is not None), None) for name in _PROPERTIES
    }
    if any(row.queue is None or getattr(row, "side", None) == "inbox" for row in rows):
        values["queue"] = None  # a copy of it was for one queue, and the message itself for all; it died in this one
    of_consumers = [row for part in parts for row in (*part.handled, *part.crashes)]
    for name in ("type", "key"):
        values[name] = values[name] or next(filter(None, (getattr(row, name, None) for row in of_consumers)), None)
    trace_id = next(filter(None, (_trace_of(row.headers) for row in rows)), None)
    return SimpleNamespace(message_id=id_, trace_id=trace_id, **values)


def _trace_of(headers: bytes) -> str | None:
    """The trace id in stored headers; None if they have none, or cannot be read."""
    try:
        parent = decode_headers(headers).get("traceparent")
    except (ValueError, RecursionError, TypeError):
        return None
    fields = parent.split("-") if isinstance(parent, str) else []
    return fields[1] if len(fields) >= 4 and fields[1].isalnum() else None


class _Draft:
    """A message's state, reasons and timeline, before the messages that it has caused are known."""

    def __init__(self, message: Any, parts: Sequence[_Part]) -> None:
        self.message, self._parts = message, parts
        self._born = ids.time_of(message.message_id) or message.created_at
        published = [row.published_at for part in parts for row in part.kept if row.queue is None]
        self._since = max(published, default=self._born)
        """When it was published, or added."""
        self._why = [reason for part in parts for reason in self._reasons(part)]
        states = {"waiting" if reason.kind in reasons.IN_OUTBOX else reason.kind for reason in self._why} & {*ORDER}
        self.state = min(states - {"replayed"} or {"published"}, key=ORDER.index)
        events = set(chain(self._added(), *map(_events, parts)))
        self._timeline = sorted(events, key=lambda event: (event.what != "added", event.at or _LAST, event.text))
        self.first = next((event.at for event in self._timeline if event.at is not None), _LAST)

    def finish(self, children: Sequence["_Draft"]) -> MessageTrace:
        message, done, there = self.message, set[tuple[str, str]](), set[tuple[str, str]]()
        for part in self._parts:
            done |= {(part.database.name, row.handler) for row in part.handled}
            takers = (each for each in part.database.expected(message) if not reasons.is_younger(each, self._since))
            there |= {(part.database.name, each.handler) for each in takers}
        return MessageTrace(
            **{name: getattr(message, name) for name in ("message_id", *_PROPERTIES[:-1], "trace_id")},
            state=self.state,
            handled_by=len(done),
            handlers=len(done | there),
            why=tuple(self._why),
            timeline=tuple(self._timeline),
            caused=tuple(
                Caused(child.message.message_id, child.message.type, child.state)
                for child in sorted(children, key=lambda child: (child.first, child.message.message_id))
            ),
            unknown=tuple(self._unknown()),
        )

    def _reasons(self, part: _Part) -> Iterator[Explanation]:
        database, message = part.database, self.message
        queues = {each.queue for one in self._parts for each in one.database.expected(message)}
        yield from (reasons.why_it_waits(row, database) for row in part.waiting)
        yield from (reasons.of_letter(row, database, queues) for row in part.letters if row.resolution is None)
        rows = [*part.waiting, *part.kept]
        if len(digests := {row.digest for row in rows}) > 1:
            yield reasons.of_payloads(len(rows), len(digests), database)
        yield from (reasons.of_crashes(row, database) for row in part.crashes)
        discarded = {row.handler for row in part.letters if row.resolution == "discarded"}
        for row in part.handled:
            if row.handler not in discarded:
                text = f"{legible(row.handler)} handled it at {in_utc(row.processed_at)}"
                yield Explanation("handled", text, (), database.name)
        if not part.waiting and self._was_sent():
            letters = [row for row in part.letters if row.side == "inbox"]
            done = {row.handler for row in (*part.handled, *letters) if row.handler is not None}
            done |= {name for row in part.crashes if row.error is not None for name in (row.handler or "").split(", ")}
            ended = {row.queue for row in letters if row.handler is None}
            yield from reasons.not_handled(message, database, done, ended, self._since)
        yield from (reasons.of_letter(row, database) for row in part.letters if row.resolution is not None)

    def _was_sent(self) -> bool:
        """Whether it may be in a queue: something tells that it was there, or no outbox has it, nor was it given up.

        A copy of a message for one queue says nothing of the message itself.
        """
        letters = [row for part in self._parts for row in part.letters]
        arrived = any(part.kept or part.handled or part.crashes for part in self._parts)
        given_up = [row for row in letters if row.side == "outbox" and row.queue is None]
        lost = any(row.resolution != "replayed" for row in given_up)
        is_left = lost or any(part.waiting for part in self._parts)
        return arrived or any(row.side == "inbox" for row in letters) or not is_left

    def _unknown(self) -> Iterator[str]:
        """The things that the tables do not tell of this message."""
        parts, databases = self._parts, [part.database for part in self._parts]
        is_in_outbox = any(part.waiting for part in parts)
        if not is_in_outbox and not any(part.kept for part in parts):
            yield from _not_kept(self._born, databases)
        if not is_in_outbox and not any(part.handled or part.letters for part in parts):
            if not any(
                each.handlers if self.message.type is None else each.expected(self.message) for each in databases
            ):
                yield (
                    f"whether a handler has processed it: no consumer of {legible(self.message.type)} is registered in "
                    "these databases. Add the database of its consumer with --also"
                )
            elif any(each.may_have_forgotten(self._born) for each in databases):
                yield "whether a handler has processed it: its inbox row may be older than OUTBOXKIT_INBOX_RETENTION"
        for row in (row for part in parts for row in part.handled if row.attempts > 1):
            yield f"the errors of the attempts of {legible(row.handler)} before the last: its log has them"

    def _added(self) -> Iterator[Event]:
        """Its beginning, whatever other clocks say; a delayed message has its due time in its id and `created_at`."""
        cause = f", caused by {legible(self.message.causation_id)}" if self.message.causation_id else ""
        more = cause + (f", in trace {legible(self.message.trace_id)}" if self.message.trace_id else "")
        delayed = [row.due_at for part in self._parts for row in part.waiting if not row.held]
        if self.message.created_at is not None and self.message.created_at in delayed:
            yield Event(None, "added", f"added at a time that is not kept: it has a deliver_at{more}", None)
        elif self._born is not None:
            yield Event(self._born, "added", f"added, by the producer's clock{more}", None)


def _events(part: _Part) -> Iterator[Event]:
    """The events that the rows of a database tell."""
    name = part.database.name
    for row in [*part.waiting, *part.letters]:
        if row.first_failed_at is not None and row.first_failed_at != getattr(row, "dead_at", None):
            what = "failed" if row in part.letters else "publishing failed"
            yield Event(row.first_failed_at, "refused", f"{what} for the first time", name)
    for row in part.kept:
        to = "the broker" if row.destination == DEFAULT_DESTINATION else legible(row.destination)
        only = f", for queue {legible(row.queue)} alone" if row.queue else ""
        yield Event(row.published_at, "published", f"published to {to}{only}", name)
    for row in part.handled:
        text = f"handled by {legible(row.handler)}, attempt {row.attempts}"
        yield Event(row.processed_at, "handled", text, name)
    for row in part.crashes:
        if row.error is not None:
            text = f"failed at attempt {row.attempt} in queue {legible(row.queue)}{reasons.by_handler(row)}"
            yield Event(row.touched_at, "failed", text, name)
        else:
            text = f"started by the consumer of queue {legible(row.queue)}, and neither handled nor given up since"
            yield Event(row.touched_at, "started", text, name)
    for row in part.letters:
        at = f" in queue {legible(row.queue)}" if row.side == "inbox" and row.queue else ""
        by = f", handler {legible(row.handler)}" if row.handler else ""
        attempts = f"{legible(row.reason)} after {many(row.attempts, 'attempt')}"
        text = f"dead letter {row.id} of the {row.side}{at}{by}, {attempts}{reasons.because(row)}"
        yield Event(row.dead_at, "dead", text, name)
        if row.resolution is not None:
            text = f"dead letter {row.id} {row.resolution} by {legible(row.resolved_by)}"
            yield Event(row.resolved_at, row.resolution, text, name)


def _not_kept(born: datetime | None, databases: Sequence[DatabaseRows]) -> Iterator[str]:
    oldest = min((each.oldest_kept for each in databases if each.oldest_kept is not None), default=None)
    setting = "OUTBOXKIT_PUBLISHED_RETENTION"
    if oldest is None:
        yield f"whether and when it was published: no published message is kept. {setting} at the relay keeps them"
    elif born is not None and born < oldest:
        yield f"when it was published: kept messages begin at {in_utc(oldest)}. A longer {setting} keeps more"
    else:
        yield "when it was published: it is not among the kept messages that were read"


def _nothing(query: TraceQuery, databases: Sequence[DatabaseRows], *, is_alone: bool) -> Iterator[str]:
    """Reasons for which a message may exist although nothing is known of it; its age excludes some.

    `is_alone`: one database was asked for.
    """
    yield "whether its transaction has been committed: until then nobody sees it, and after a rollback there is nothing"
    begun = query.begun
    oldest = min((each.oldest_kept for each in databases if each.oldest_kept is not None), default=None)
    if oldest is None:
        yield "whether it was published: OUTBOXKIT_PUBLISHED_RETENTION at the relay keeps published messages"
        yield "whether it waits at the broker: no table has what is in a queue; ask its consumer and `outboxkit doctor`"
    elif begun is None or begun < oldest:
        yield f"whether it was published before {in_utc(oldest)}, at which kept messages begin"
    if oldest is None and query.id_ is None:
        yield "whether it was handled: the inbox knows it by its id alone, as `outboxkit trace MESSAGE_ID` finds it"
    elif any(each.may_have_forgotten(begun) for each in databases):
        yield "whether it was handled longer ago than OUTBOXKIT_INBOX_RETENTION"
    if begun is None or max(each.now for each in databases) - begun > ASSUMED_RETENTION:
        yield "whether it died longer ago than OUTBOXKIT_DEAD_RETENTION"
    if is_alone:
        yield "what another service's database has: name it with --also"
