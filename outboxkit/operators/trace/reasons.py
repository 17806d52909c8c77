"""The reason for which a message is where it is, as a sentence, and what repairs it. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outboxkit import ids
from outboxkit.brokers import Verdict
from outboxkit.database.session_names import RELAY
from outboxkit.errors.failures import printable
from outboxkit.errors.wording import COUNTED, Count, in_utc, many, shell_word
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.trace.entries import (
    Archive,
    Crashes,
    Identity,
    InboxEntry,
    Letter,
    Lock,
    Neighbour,
    Registered,
    Waiting,
)
from outboxkit.statements.activity import NEVER
from outboxkit.tables import PARKED

NAMES = 120
LONG = timedelta(minutes=1)
"""The time after which a relay that is connected may hang."""
HANGING = "if the relay's log stands still, end its process: its supervisor starts it again, and nothing is lost"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A sentence about the state of a message.

    Attributes:
        kind: `locked`, `paused`, `parked`, `behind`, `retry`, `delayed`, `ready`, `no relay`, `dead`, `ambiguous`,
            `started`, `not handled`, `younger`, `handled`, `discarded` or `replayed`.
        text: the sentence.
        database: the database whose tables say so.
        cure: commands, or what to do; empty if nothing is to be done.
    """

    kind: str
    text: str
    database: str
    cure: tuple[str, ...] = ()


def legible(text: str | None) -> str:
    """A name from the tables in one line, cut off if it is long."""
    return printable(text or "-", NAMES)


def why_it_waits(row: Waiting, now: datetime) -> Explanation:
    """The one thing that a row of the outbox waits for."""
    around = row.around
    if around.lock is not None:
        return _locked(row, around.lock, now)
    if around.parking is not None:
        return _parked(row, around.parking)
    if around.held is not None:
        return _behind(row, around.held)
    if around.pause is not None and (row.due_at is None or row.due_at <= now):
        return Explanation("paused", str(around.pause), row.database, (f"outboxkit resume relay{_option(row)}",))
    if row.due_at is not None:
        return _until(row, row.due_at, now)
    return _ready(row, now) if around.ready is None else _behind(row, around.ready)


def _until(row: Waiting, due_at: datetime, now: datetime) -> Explanation:
    if due_at >= PARKED:
        text = f"its key {legible(row.message.key)} is parked, and no open dead letter parks it any more"
        return Explanation("parked", text, row.database)
    if row.held and row.last_error is not None:
        failed = f"attempt {row.attempts} failed" if row.attempts else "it was put off, which counts no attempt"
        text = f"{failed}, and the next one is due at {in_utc(due_at)}: {legible(row.last_error)}"
        if due_at > now or row.around.relays != 0:
            return Explanation("retry", text, row.database, ("outboxkit doctor",))
        return Explanation("no relay", f"no relay is connected to this database; {text}", row.database, (_relay(row),))
    if due_at > now:
        why = "it waited behind a message of its key, and is" if row.held else "it is delayed by its deliver_at, and"
        return Explanation("delayed", f"{why} due at {in_utc(due_at)}", row.database)
    return _ready(row, now)


def _locked(row: Waiting, lock: Lock, now: datetime) -> Explanation:
    since = f", since {in_utc(lock.since)}" if lock.since is not None else ""
    if (lock.name or "").startswith(RELAY):
        cure = (HANGING,) if _is_long(lock.since, now) else ()
        return Explanation("locked", f"a relay has it in hand: session {lock.pid}{since}", row.database, cure)
    text = f"session {lock.pid} ({legible(lock.name)}) has locked its row{since}, and relays skip it until that ends"
    return Explanation(
        "locked", text, row.database, (f"end that transaction, or SELECT pg_terminate_backend({lock.pid})",)
    )


def _parked(row: Waiting, parking: Neighbour) -> Explanation:
    text = (
        f"its key {legible(row.message.key)} is parked by dead letter {parking.number}, message "
        f"{legible(parking.message_id)}, {legible(parking.reason)}{because(parking)}"
    )
    cure = (f"outboxkit dead replay {parking.number}", f"outboxkit dead discard {parking.number}")
    return Explanation("parked", text, row.database, cure)


def _behind(row: Waiting, first: Neighbour) -> Explanation:
    text = f"it is behind message {legible(first.message_id)} of its key {legible(row.message.key)}"
    if first.due_at is not None and first.due_at >= PARKED:
        text += ", which is parked"
    elif first.due_at is not None:
        text += f", whose next attempt is due at {in_utc(first.due_at)}"
    if first.error is not None:
        text += f" after attempt {first.attempts}" if first.attempts else ""
        text += f": {legible(first.error)}"
    return Explanation("behind", text, row.database, (f"outboxkit trace {shell_word(first.message_id or '-')}",))


def _ready(row: Waiting, now: datetime) -> Explanation:
    destination = row.message.destination or DEFAULT_DESTINATION
    count, verb = row.around.ahead, "is" if row.around.ahead == 1 else "are"
    before = f"{many(Count(count, at_least=count > COUNTED), 'message')} to {legible(destination)} {verb} before it"
    ahead = before if count else "it is the next one"
    if row.around.relays == 0:
        text = f"no relay is connected to this database; {ahead}"
        return Explanation("no relay", text, row.database, (_relay(row),))
    beside = f"meanwhile a relay beside it moves what waits and is not locked: {_relay(row)} --drain"
    is_late = row.around.relays is not None and _is_long(row.due_at or row.message.created_at, now)
    text = f"it waits for the relay of {legible(destination)}; {ahead}"
    return Explanation("ready", text, row.database, ("outboxkit doctor", HANGING, beside) if is_late else ())


def _is_long(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since >= LONG


def _relay(row: Waiting) -> str:
    return f"outboxkit relay{_option(row)}"


def _option(row: Waiting) -> str:
    destination = row.message.destination or DEFAULT_DESTINATION
    return "" if destination == DEFAULT_DESTINATION else f" --destination {shell_word(destination)}"


def of_letter(letter: Letter, queues: Collection[str] = ()) -> Explanation:
    """The reason of a dead letter: open, replayed or discarded. `queues` are those whose handlers take its type."""
    by = f" of handler {legible(letter.handler)}" if letter.handler else ""
    text = f"dead letter {letter.number} of the {letter.side}{by}, {legible(letter.reason)}{because(letter)}"
    if letter.resolution is None:
        parks = f"; it parks the key {legible(letter.message.key)}" if letter.parked else ""
        cure = (f"outboxkit dead replay {letter.number}", f"outboxkit dead discard {letter.number}")
        return Explanation("dead", text + parks, letter.database, (*_binding(letter, queues), *cure))
    done = f"dead letter {letter.number} was {letter.resolution} by {legible(letter.resolved_by)}"
    return Explanation(letter.resolution, f"{done} at {in_utc(letter.resolved_at)}", letter.database)


def because(dead: Letter | Neighbour) -> str:
    """The error of a dead letter behind its reason, which the relay has written in front of the error as well."""
    return f": {legible(dead.error.removeprefix(f'{dead.reason}: '))}" if dead.error else ""


def _binding(letter: Letter, queues: Collection[str]) -> Iterator[str]:
    """The step that gives an unroutable message a queue, before its replay."""
    message = letter.message
    is_unroutable = (letter.side, letter.reason) == ("outbox", Verdict.UNROUTABLE)
    if not is_unroutable or message.destination not in (None, DEFAULT_DESTINATION):
        return
    for queue in sorted({message.queue} if message.queue is not None else queues) or ["QUEUE"]:
        name = shell_word(queue)
        yield (
            f"first start the consumer of {legible(message.type)}, again if it runs, which binds its queue: "
            f"outboxkit consume MODULE --queue {name}"
        )


def was_never_sent(letters: Collection[Letter]) -> bool:
    """Whether these dead letters of a message tell that the relay gave it up, and that nobody has replayed it since.

    A copy of a message for one queue says nothing of the message itself.
    """
    given_up = [row for row in letters if row.side == "outbox" and row.message.queue is None]
    return any(row.resolution != "replayed" for row in given_up)


def of_crashes(record: Crashes) -> Explanation:
    """The reason of a crash record."""
    if record.starts:
        times = "once" if record.starts == 1 else f"{record.starts} times"
        text = f"the consumer of queue {legible(record.queue)} started it {times} without an end: it runs now, or its "
        return Explanation("started", f"{text}process ended", record.database)
    text = f"the consumer of queue {legible(record.queue)} keeps an order, and tries it again after {record.failures} "
    return Explanation("started", f"{text}failures", record.database)


def of_handled(row: InboxEntry, message: Identity) -> Explanation:
    """The reason of a row of the inbox."""
    text = f"{legible(row.handler)} handled it at {in_utc(row.processed_at)}{dated(row, message)}"
    return Explanation("handled", text, row.database)


def dated(row: InboxEntry, message: Identity) -> str:
    """A word if the time of an inbox row is not the database's: the message's own was later."""
    own = ids.time_of(message.message_id or "") or message.created_at
    is_own = own is not None and row.processed_at in (own, own.replace(microsecond=0))
    return ", dated by its producer, whose clock was ahead" if is_own else ""


def of_payloads(count: int, message: Identity, archive: Archive) -> Explanation:
    """The reason of an id that several messages have, with different payloads."""
    payloads = archive.payloads[message.message_id or ""]
    text = (
        f"{count} messages have this id, with {payloads} payloads: each handler takes one of them, as the first to come"
    )
    return Explanation(
        "ambiguous", text, archive.database, ("give each message an id of its own", "outboxkit reconcile")
    )


def expected(message: Identity, archive: Archive) -> list[Registered]:
    """The registered handlers that take a message of this type from the broker, as far as their types are known."""
    if message.destination not in (None, DEFAULT_DESTINATION):
        return []
    return [
        each
        for each in archive.handlers
        if each.types is not None
        and message.type in each.types
        and each.last_seen > NEVER
        and message.queue in (None, each.queue)
    ]


def is_younger(handler: Registered, since: datetime | None) -> bool:
    """Whether its consumer had not been seen when the message was published, or added."""
    return None not in (handler.first_seen, since) and handler.first_seen > since  # type: ignore[operator]


def not_handled(
    message: Identity,
    archive: Archive,
    handlers: Collection[str],
    letters: Sequence[Letter],
    since: datetime | None,
) -> Iterator[Explanation]:
    """A reason for the handlers that take this type and have neither handled nor given up the message.

    `handlers` are those that have handled it, or work on it; `since` is when it was published, or added.
    """
    done = {*handlers} | {letter.handler for letter in letters if letter.side == "inbox"}
    if None in done:
        return
    left = [each for each in expected(message, archive) if each.handler not in done]
    if late := [each for each in left if is_younger(each, since)]:
        seen = [f"{_named(each)} (first seen at {in_utc(each.first_seen)})" for each in late]
        text = f"younger than the message, and so without it, unless it was replayed: {', '.join(seen)}"
        yield Explanation("younger", text, archive.database)
    if not (there := [each for each in left if each not in late]):
        return
    unbound = ", or its queue was not bound" if since is None or archive.now - since >= LONG else ""
    text = (
        f"not handled by {', '.join(map(_named, there))}. It is in the queue, is being handled at this moment, or "
        f"waits there for its next attempt{unbound}"
    )
    queues = sorted({each.queue for each in there})
    blockers = [one for one in archive.blockers if any(one.blocks_queue(queue) for queue in queues)]
    text = "; ".join([text, *map(str, blockers)])
    names = ", ".join(map(legible, queues))
    look = f"look at the length of {names} and of outboxkit.delay.…, and whether a consumer runs"
    cure = (*(one.cure for one in blockers), look)
    yield Explanation("not handled", text, archive.database, cure)


def _named(each: Registered) -> str:
    return f"{legible(each.handler)} of queue {legible(each.queue)}"
