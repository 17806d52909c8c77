"""The timeline of a message: a line for each moment of its life that a table knows. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from outboxkit import ids
from outboxkit.lives.entries import Crashes, Identity, InboxEntry, Kept, Letter, Waiting
from outboxkit.lives.reasons import legible
from outboxkit.message import DEFAULT_DESTINATION

Entry = Waiting | Kept | Letter | InboxEntry | Crashes
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


def timeline_of(message: Identity, entries: Sequence[Entry]) -> list[Event]:
    """All that is known, in the order of time."""
    events = [*_added(message, entries), *(event for entry in entries for event in _of(entry))]
    return sorted(dict.fromkeys(events), key=lambda event: (event.what != "added", event.at or _LAST))


def _added(message: Identity, entries: Sequence[Entry]) -> Iterator[Event]:
    """Its beginning, whatever other clocks say; a delayed message has its due time in its id and `created_at`."""
    at = ids.time_of(message.message_id or "") or message.created_at
    cause = f", caused by {legible(message.causation_id)}" if message.causation_id else ""
    trace = f", in trace {legible(message.trace_id)}" if message.trace_id else ""
    delayed = [entry.due_at for entry in entries if isinstance(entry, Waiting) and not entry.held]
    if message.created_at is not None and message.created_at in delayed:
        yield Event(None, "added", f"added at a time that is not kept: it has a deliver_at{cause}{trace}", None)
    elif at is not None:
        yield Event(at, "added", f"added, by the producer's clock{cause}{trace}", None)


def _of(entry: Entry) -> Iterator[Event]:
    match entry:
        case Waiting(first_failed_at=datetime() as at):
            yield Event(at, "refused", "publishing failed for the first time", entry.database)
        case Kept():
            yield Event(entry.published_at, "published", _published(entry.message), entry.database)
        case InboxEntry():
            yield Event(entry.processed_at, "handled", _handled(entry), entry.database)
        case Crashes():
            text = f"started by the consumer of queue {legible(entry.queue)}, and neither handled nor given up since"
            yield Event(entry.touched_at, "started", text, entry.database)
        case Letter():
            yield from _letter(entry)


def _published(message: Identity) -> str:
    only = f", for queue {legible(message.queue)} alone" if message.queue else ""
    elsewhere = message.destination not in (None, DEFAULT_DESTINATION)
    return f"published to {legible(message.destination) if elsewhere else 'the broker'}{only}"


def _handled(row: InboxEntry) -> str:
    took = "within 100 ms" if row.duration_ms is None else f"in {row.duration_ms} ms"
    return f"handled by {legible(row.handler)}, attempt {row.attempts}, {took}"


def _letter(letter: Letter) -> Iterator[Event]:
    if letter.first_failed_at is not None and letter.first_failed_at != letter.dead_at:
        yield Event(letter.first_failed_at, "refused", "failed for the first time", letter.database)
    at = f" in queue {legible(letter.message.queue)}" if letter.side == "inbox" and letter.message.queue else ""
    by = f", handler {legible(letter.handler)}" if letter.handler else ""
    because = f": {legible(letter.error)}" if letter.error else ""
    attempts = "1 attempt" if letter.attempts == 1 else f"{letter.attempts} attempts"
    text = (
        f"dead letter {letter.number} of the {letter.side}{at}{by}, {legible(letter.reason)} after {attempts}{because}"
    )
    yield Event(letter.dead_at, "dead", text, letter.database)
    if letter.resolution is not None:
        by = legible(letter.resolved_by)
        text = f"dead letter {letter.number} {letter.resolution} by {by}"
        yield Event(letter.resolved_at, letter.resolution, text, letter.database)
