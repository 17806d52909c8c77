"""The lives of messages from the entries of all databases: timelines, reasons, and what each has caused. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Self

from outboxkit import ids
from outboxkit.errors.wording import in_utc
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.trace import reasons
from outboxkit.operators.trace.clue import Clue
from outboxkit.operators.trace.entries import Archive, Crashes, Identity, InboxEntry, Kept, Letter, Waiting
from outboxkit.operators.trace.reasons import Explanation, legible

ORDER = ("waiting", "dead", "started", "not handled", "published", "handled", "discarded", "replayed")
"""The states, the one that matters most first."""
_IN_OUTBOX = ("locked", "paused", "parked", "behind", "retry", "delayed", "ready", "no relay")


Entry = Waiting | Kept | Letter | InboxEntry | Crashes


SKEW = timedelta(seconds=2)
"""A producer's clock that is so far ahead is not worth a word."""
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of a message's life.

    Attributes:
        at: when, by the clock of the database that says so; None if it is not known.
        what: `added`, `refused`, `published`, `handled`, `started`, `dead`, `replayed` or `discarded`.
        text: a line about it.
        database: the database whose tables say so; None for what the message itself says.
    """

    at: datetime | None
    what: str
    text: str
    database: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """The entries of one message in one database."""

    archive: Archive
    waiting: list[Waiting]
    kept: list[Kept]
    letters: list[Letter]
    handled: list[InboxEntry]
    crashes: list[Crashes]

    @classmethod
    def nothing(cls, archive: Archive) -> Self:
        """No entries."""
        return cls(archive, [], [], [], [], [])

    def entries(self) -> list[Entry]:
        """All of them."""
        return [*self.waiting, *self.kept, *self.letters, *self.handled, *self.crashes]


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one message.

    Attributes:
        message: what is known of it.
        state: the one that matters most: `waiting`, `dead`, `started`, `not handled`, `published`, `handled`,
            `discarded` or `replayed`.
        reasons: a sentence for each thing that is to be known of its state, with its cure.
        timeline: what happened, in the order of time.
        unknown: what the tables do not tell, and the setting that would have kept it.
        caused: the ids of the messages that its handlers added.
        handled_by: the number of handlers that have handled it.
        handlers: the number of handlers that have handled it, or were there to take it.
    """

    message: Identity
    state: str
    reasons: tuple[Explanation, ...]
    timeline: tuple[Event, ...]
    unknown: tuple[str, ...]
    caused: tuple[str, ...]
    handled_by: int
    handlers: int


def lives(archives: Sequence[Archive]) -> dict[str, Life]:
    """The lives of all messages that were found, by their ids; the oldest first."""
    parts, caused = dict[str, list[Found]](), defaultdict[str, set[str]](set)
    for number, archive in enumerate(archives):
        for id_, part in _parts_of(archive).items():
            parts.setdefault(id_, [Found.nothing(each) for each in archives])[number] = part
        for child in archive.identities():
            if child.causation_id is not None and child.causation_id != child.message_id:
                caused[child.causation_id].add(child.message_id or "")
    ordered = sorted((_life(id_, each, caused[id_]) for id_, each in parts.items()), key=_age)
    return {life.message.message_id or "": life for life in ordered}


def selected(clue: Clue, all_: dict[str, Life]) -> list[Life]:
    """The lives that were asked for: of the id, of the key, or those of the story that lead to all others."""
    if clue.message_id is not None:
        return [life for id_, life in all_.items() if id_ == clue.message_id]
    if clue.key is not None:
        return [life for life in all_.values() if life.message.key == clue.key]
    inside = {id_ for life in all_.values() for id_ in life.caused}
    first, reached = set[str](), set[str]()
    for id_ in sorted(all_, key=inside.__contains__):  # of a circle, which foreign ids can make, the oldest one
        if id_ not in reached:
            first.add(id_)
            left = [id_]
            while left:
                reached.add(each := left.pop())
                left += [below for below in all_[each].caused if below in all_ and below not in reached]
    return [life for id_, life in all_.items() if id_ in first]


def _age(life: Life) -> tuple[str, str]:
    first = next((event.at for event in life.timeline if event.at is not None), None)
    return (first.isoformat() if first else "9999", life.message.message_id or "")


def _parts_of(archive: Archive) -> dict[str, Found]:
    """The entries of each message in a database, by its id."""
    parts = dict[str, Found]()

    def part(id_: str | None) -> Found:
        return parts.setdefault(id_ or "", Found.nothing(archive))

    for waiting in archive.waiting.values():
        part(waiting.message.message_id).waiting.append(waiting)
    for row in archive.kept.values():
        part(row.message.message_id).kept.append(row)
    for letter in archive.letters.values():
        part(letter.message.message_id).letters.append(letter)
    for handled in archive.handled.values():
        part(handled.message_id).handled.append(handled)
    for crashes in archive.crashes.values():
        part(crashes.message_id).crashes.append(crashes)
    parts.pop("", None)  # a dead letter whose id could not be read
    return parts


def _life(id_: str, parts: Sequence[Found], caused: Collection[str]) -> Life:
    """The life of a message, of which there is a part for each database."""
    message = _merged(id_, parts)
    since = max((row.published_at for part in parts for row in part.kept if row.message.queue is None), default=None)
    since = since or ids.time_of(id_) or message.created_at
    why = [reason for part in parts for reason in _reasons(message, part, parts, since)]
    states = {"waiting" if reason.kind in _IN_OUTBOX else reason.kind for reason in why} & {*ORDER}
    if not states or states <= {"replayed"}:
        states.add("published")
    done = {(number, row.handler) for number, part in enumerate(parts) for row in part.handled}
    takers = {
        (number, each.handler)
        for number, part in enumerate(parts)
        for each in reasons.expected(message, part.archive)
        if not reasons.is_younger(each, since)
    }
    entries = [entry for part in parts for entry in part.entries()]
    return Life(
        message=message,
        state=min(states, key=ORDER.index),
        reasons=tuple(why),
        timeline=tuple(timeline_of(message, entries, max(part.archive.now for part in parts))),
        unknown=tuple(_unknown(id_, message, parts)),
        caused=tuple(sorted(caused)),
        handled_by=len(done),
        handlers=len(done | takers),
    )


def _merged(id_: str, parts: Sequence[Found]) -> Identity:
    """The first value of each property: of the producer's rows, then of dead letters."""
    rows = [row.message for part in parts for row in part.waiting]
    rows += [row.message for part in parts for row in part.kept]
    rows += [row.message for part in parts for row in part.letters]
    types = [row.type for part in parts for row in part.handled]
    values = {
        each.name: next((value for row in rows if (value := getattr(row, each.name)) is not None), None)
        for each in fields(Identity)
    }
    if any(row.queue is None for row in rows):
        values["queue"] = None  # a copy of it was for one queue, and the message itself for all
    return Identity(**values | {"message_id": id_, "type": values["type"] or next(iter(types), None)})


def _reasons(message: Identity, part: Found, parts: Sequence[Found], since: datetime | None) -> Iterator[Explanation]:
    queues = {each.queue for one in parts for each in reasons.expected(message, one.archive)}
    yield from (reasons.why_it_waits(row, part.archive.now) for row in part.waiting)
    yield from (reasons.of_letter(row, queues) for row in part.letters if row.resolution is None)
    if part.archive.payloads.get(message.message_id or "", 1) > 1:
        yield reasons.of_payloads(len(part.waiting) + len(part.kept), message, part.archive)
    yield from (reasons.of_crashes(row) for row in part.crashes)
    discarded = {row.handler for row in part.letters if row.resolution == "discarded"}
    yield from (reasons.of_handled(row, message) for row in part.handled if row.handler not in discarded)
    if not part.waiting and _was_sent(parts):
        done = {row.handler for row in part.handled}
        yield from reasons.not_handled(message, part.archive, done, part.letters, since)
    yield from (reasons.of_letter(row) for row in part.letters if row.resolution is not None)


def _was_sent(parts: Sequence[Found]) -> bool:
    """Whether the message may be in a queue: the relay has not given it up, or something tells that it was there."""
    letters = [row for part in parts for row in part.letters]
    arrived = any(part.kept or part.handled or part.crashes for part in parts)
    return arrived or any(row.side == "inbox" for row in letters) or not reasons.was_never_sent(letters)


def _unknown(id_: str, message: Identity, parts: Sequence[Found]) -> Iterator[str]:
    """The things that the tables do not tell of this message."""
    born = ids.time_of(id_) or message.created_at
    archives = [part.archive for part in parts]
    is_in_outbox = any(part.waiting for part in parts)
    if not is_in_outbox and not any(part.kept for part in parts):
        yield from _not_kept(born, archives)
    if not is_in_outbox and not any(part.handled or part.letters for part in parts):
        yield from _not_handled(message, born, archives)
    for row in (row for part in parts for row in part.handled):
        if row.attempts > 1:
            yield f"the errors of the attempts of {reasons.legible(row.handler)} before the last: its log has them"


def _not_handled(message: Identity, born: datetime | None, archives: Sequence[Archive]) -> Iterator[str]:
    """The reason for which no inbox row tells of it: it is in another database, or may have been deleted."""
    handlers = [
        archive.handlers if message.type is None else reasons.expected(message, archive) for archive in archives
    ]
    if not any(handlers):
        yield (
            f"whether a handler has processed it: no consumer of {legible(message.type)} is registered in these "
            "databases. Add the database of its consumer with --also"
        )
    elif any(archive.may_have_forgotten(born) for archive in archives):
        yield "whether a handler has processed it: its inbox row may be older than OUTBOXKIT_INBOX_RETENTION"


def _not_kept(born: datetime | None, archives: Sequence[Archive]) -> Iterator[str]:
    oldest = min((archive.oldest_kept for archive in archives if archive.oldest_kept is not None), default=None)
    if oldest is None:
        yield (
            "when it was published, and whether it was: no published message is kept. OUTBOXKIT_PUBLISHED_RETENTION at "
            "the relay keeps them"
        )
    elif born is not None and born < oldest:
        yield (
            f"when it was published: kept messages begin at {in_utc(oldest)}. A longer "
            "OUTBOXKIT_PUBLISHED_RETENTION keeps more"
        )
    elif not any("published" in archive.cut for archive in archives):
        yield "when it was published: it is not among the kept messages, and not in the outbox of these databases"


def timeline_of(message: Identity, entries: Sequence[Entry], now: datetime) -> list[Event]:
    """All that is known, in the order of time; `now` is the databases' time."""
    events = [*_added(message, entries, now), *(event for entry in entries for event in _of(entry, message))]
    return sorted(dict.fromkeys(events), key=lambda event: (event.what != "added", event.at or _LAST))


def _added(message: Identity, entries: Sequence[Entry], now: datetime) -> Iterator[Event]:
    """Its beginning, whatever other clocks say; a delayed message has its due time in its id and `created_at`."""
    at = ids.time_of(message.message_id or "") or message.created_at
    cause = f", caused by {legible(message.causation_id)}" if message.causation_id else ""
    trace = f", in trace {legible(message.trace_id)}" if message.trace_id else ""
    delayed = [entry.due_at for entry in entries if isinstance(entry, Waiting) and not entry.held]
    if message.created_at is not None and message.created_at in delayed:
        yield Event(None, "added", f"added at a time that is not kept: it has a deliver_at{cause}{trace}", None)
    elif at is not None:
        ahead = ", which is ahead: this is still to come" if at > now + SKEW else ""
        yield Event(at, "added", f"added, by the producer's clock{ahead}{cause}{trace}", None)


def _of(entry: Entry, message: Identity) -> Iterator[Event]:
    match entry:
        case Waiting(first_failed_at=datetime() as at):
            yield Event(at, "refused", "publishing failed for the first time", entry.database)
        case Kept():
            yield Event(entry.published_at, "published", _published(entry.message), entry.database)
        case InboxEntry():
            yield Event(entry.processed_at, "handled", _handled(entry, message), entry.database)
        case Crashes():
            text = f"started by the consumer of queue {legible(entry.queue)}, and neither handled nor given up since"
            yield Event(entry.touched_at, "started", text, entry.database)
        case Letter():
            yield from _letter(entry)


def _published(message: Identity) -> str:
    only = f", for queue {legible(message.queue)} alone" if message.queue else ""
    elsewhere = message.destination not in (None, DEFAULT_DESTINATION)
    return f"published to {legible(message.destination) if elsewhere else 'the broker'}{only}"


def _handled(row: InboxEntry, message: Identity) -> str:
    took = "within 100 ms" if row.duration_ms is None else f"in {row.duration_ms} ms"
    return f"handled by {legible(row.handler)}, attempt {row.attempts}, {took}{reasons.dated(row, message)}"


def _letter(letter: Letter) -> Iterator[Event]:
    if letter.first_failed_at is not None and letter.first_failed_at != letter.dead_at:
        yield Event(letter.first_failed_at, "refused", "failed for the first time", letter.database)
    at = f" in queue {legible(letter.message.queue)}" if letter.side == "inbox" and letter.message.queue else ""
    by = f", handler {legible(letter.handler)}" if letter.handler else ""
    attempts = "1 attempt" if letter.attempts == 1 else f"{letter.attempts} attempts"
    text = (
        f"dead letter {letter.number} of the {letter.side}{at}{by}, {legible(letter.reason)} after {attempts}"
        f"{reasons.because(letter)}"
    )
    yield Event(letter.dead_at, "dead", text, letter.database)
    if letter.resolution is not None:
        by = legible(letter.resolved_by)
        text = f"dead letter {letter.number} {letter.resolution} by {by}"
        yield Event(letter.resolved_at, letter.resolution, text, letter.database)
