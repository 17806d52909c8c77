"""The reason for which a message is where it is, as a sentence, and what repairs it. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outboxkit.brokers import Verdict
from outboxkit.database.session_names import RELAY_SESSION
from outboxkit.errors.failures import printable
from outboxkit.errors.figures import counted, in_utc, many, shell_word
from outboxkit.message import DEFAULT_DESTINATION, LAST_MOMENT
from outboxkit.operators.findings import LIMITS, commands_of, steps_of
from outboxkit.operators.trace.reading import DatabaseRows, Surroundings
from outboxkit.runtime.known_handlers import KnownHandler, consume_command
from outboxkit.runtime.workers import RELAY as RELAY_KIND
from outboxkit.runtime.workers import relay_command

NAMES = 120
PARKED_AS_READ = LAST_MOMENT
"""The due time of a parked row: `readable` bounds `PARKED`."""
IN_OUTBOX = {"locked", "paused", "parked", "behind", "retry", "delayed", "ready", "no relay", "not examined"}
"""The kinds of reasons of a row of the outbox."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A sentence about the state of a message.

    Attributes:
        kind: one of `IN_OUTBOX`, or `dead`, `ambiguous`, `retried`, `started`, `not handled`, `younger`, `handled`,
            `discarded`, `replayed`.
        cure: commands, or what to do; empty if nothing is to be done.
        database: the database whose tables say so.
    """

    kind: str
    text: str
    cure: tuple[str, ...]
    database: str


def legible(text: str | None) -> str:
    """A name from the tables in one line, cut off if it is long."""
    return printable(text or "-", NAMES)


def why_it_waits(row: Any, database: DatabaseRows) -> Explanation:
    """The one thing that a row of the outbox waits for."""
    around = database.around.get(row.position)
    if around is None:
        text = "it is in the outbox; what it waits for was not examined: other messages were first"
        return Explanation("not examined", text, (f"outboxkit trace {shell_word(row.message_id)}",), database.name)
    return Explanation(*_waits(row, around, database.now), database.name)


def _waits(row: Any, around: Surroundings, now: datetime) -> tuple[str, str, tuple[str, ...]]:
    key = f"its key {legible(row.key)}"
    relay, is_alone = relay_command(row.destination), around.relays == 0
    alone = f"no relay of {legible(row.destination)} is connected to this database"
    if around.lock is not None:
        return _locked(around.lock, relay, now)
    if (parking := around.parking) is not None:
        dead = f"dead letter {parking.id}, message {legible(parking.message_id)}, {legible(parking.reason)}"
        return "parked", f"{key} is parked by {dead}{because(parking)}", commands_of("key-parked", number=parking.id)
    if around.held is not None:
        return _behind(key, around.held)
    if around.pause is not None and (row.due_at is None or row.due_at <= now):
        option = "" if row.destination == DEFAULT_DESTINATION else f" --destination {shell_word(row.destination)}"
        return "paused", str(around.pause), commands_of("paused", process=f"relay{option}")
    if row.held and row.due_at is not None and row.due_at >= PARKED_AS_READ:
        return "parked", f"{key} is parked, and no open dead letter parks it any more", ()
    if row.due_at is not None and row.held and row.last_error is not None:
        failed = f"attempt {row.attempts} failed" if row.attempts else "it was put off, which counts no attempt"
        text = f"{failed}, and the next one is due at {in_utc(row.due_at)}: {legible(row.last_error)}"
        if row.due_at > now or not is_alone:
            return "retry", text, steps_of("type-failing")
        return "no relay", f"{alone}; {text}", commands_of("relay-missing", relays=relay)
    if row.due_at is not None and row.due_at > now:
        why = "it waited behind a message of its key, and is" if row.held else "it is delayed by its deliver_at, and"
        return "delayed", f"{why} due at {in_utc(row.due_at)}", ()
    if row.due_at is None and around.ready is not None:
        return _behind(key, around.ready)
    count, verb = counted(around.ahead), "is" if around.ahead == 1 else "are"
    before = f"{many(count, 'message')} to {legible(row.destination)} {verb} before it"
    ahead = before if around.ahead else "it is the next one"
    if is_alone:
        cure = commands_of("relay-missing", relays=relay)
        return "no relay", f"{alone}; {ahead}", cure
    is_late = around.relays is not None and _is_long(row.due_at or row.created_at, now)
    text = f"it waits for the relay of {legible(row.destination)}; {ahead}"
    return "ready", text, steps_of("relay-stuck", relay=relay) if is_late else ()


def _locked(lock: Any, relay: str, now: datetime) -> tuple[str, str, tuple[str, ...]]:
    since = f", since {in_utc(lock.since)}" if lock.since is not None else ""
    if (lock.name or "").startswith(RELAY_SESSION):
        cure = steps_of("relay-stuck", relay=relay) if _is_long(lock.since, now) else ()
        return "locked", f"a relay has it in hand: session {lock.pid}{since}", cure
    text = f"session {lock.pid} ({legible(lock.name)}) has locked its row{since}, and relays skip it until that ends"
    return "locked", text, commands_of("transaction-open", pid=lock.pid)


def _behind(key: str, first: Any) -> tuple[str, str, tuple[str, ...]]:
    text = f"it is behind message {legible(first.message_id)} of {key}"
    if first.due_at is not None and first.due_at >= PARKED_AS_READ:
        text += ", which is parked"
    elif first.due_at is not None:
        text += f", whose next attempt is due at {in_utc(first.due_at)}"
    if first.last_error is not None:
        text += f" after attempt {first.attempts}" if first.attempts else ""
        text += f": {legible(first.last_error)}"
    return "behind", text, (f"outboxkit trace {shell_word(first.message_id)}",)


def _is_long(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since >= LIMITS.waiting


def of_letter(letter: Any, database: DatabaseRows, queues: Collection[str] = ()) -> Explanation:
    """The reason of a dead letter: open, replayed or discarded. `queues` are those whose handlers take its type."""
    if letter.resolution is not None:
        done = f"dead letter {letter.id} was {letter.resolution} by {legible(letter.resolved_by)}"
        return Explanation(letter.resolution, f"{done} at {in_utc(letter.resolved_at)}", (), database.name)
    by = f" of handler {legible(letter.handler)}" if letter.handler else ""
    text = f"dead letter {letter.id} of the {letter.side}{by}, {legible(letter.reason)}{because(letter)}"
    text += f"; it parks the key {legible(letter.key)}" if letter.parked else ""
    cure = commands_of("dead-letters", number=letter.id, one=letter.id)
    return Explanation("dead", text, (*_binding(letter, queues), *cure), database.name)


def because(dead: Any) -> str:
    """The error of a dead letter behind its reason, which the relay has written in front of the error as well."""
    return f": {legible(dead.error.removeprefix(f'{dead.reason}: '))}" if dead.error else ""


def _binding(letter: Any, queues: Collection[str]) -> tuple[str, ...]:
    """The step that gives an unroutable message a queue, before its replay."""
    if (letter.side, letter.reason, letter.destination) != ("outbox", Verdict.UNROUTABLE, DEFAULT_DESTINATION):
        return ()
    names = sorted({letter.queue} if letter.queue is not None else queues) or ["QUEUE"]
    return steps_of("type-unwanted", consume=tuple(map(consume_command, names)))


def of_crashes(record: Any, database: DatabaseRows) -> Explanation:
    """The reason of a message that is tried again, or of a crash record."""
    if record.error is not None:
        failed = f"attempt {record.attempt} failed in queue {legible(record.queue)}{by_handler(record)}"
        text = f"{failed}, and the next one is due at {in_utc(record.next_at)}: {legible(record.error)}"
        return Explanation("retried", text, (), database.name)
    text = f"the consumer of queue {legible(record.queue)} keeps an order, and tries it again after {record.failures} "
    text += "failures"
    if record.starts:
        times = "once" if record.starts == 1 else f"{record.starts} times"
        text = f"the consumer of queue {legible(record.queue)} started it {times} without an end: it runs now, or its "
        text += "process ended"
    return Explanation("started", text, (), database.name)


def by_handler(record: Any) -> str:
    """The handlers that failed, behind a comma; nothing if none did."""
    return f", handler {legible(record.handler)}" if record.handler else ""


def of_payloads(count: int, payloads: int, database: DatabaseRows) -> Explanation:
    """The reason of an id that several messages have, with different payloads."""
    text = (
        f"{count} messages have this id, with {payloads} payloads: each handler takes one of them, as the first to come"
    )
    return Explanation("ambiguous", text, ("give each message an id of its own", "outboxkit reconcile"), database.name)


def is_younger(handler: KnownHandler, since: datetime | None) -> bool:
    """Whether its consumer had not been seen when the message was published, or added."""
    return handler.first_seen is not None and since is not None and handler.first_seen > since


def not_handled(
    message: Any, database: DatabaseRows, done: Collection[str], ended: Collection[str], since: datetime | None
) -> Iterator[Explanation]:
    """A reason for the handlers that take this type and have neither handled nor given up the message.

    `done` are those that have handled it or given it up; `ended` are the queues in which it was given up before any
    handler. `since` is when it was published, or added.
    """
    left = [each for each in database.expected(message) if each.handler not in done and each.queue not in ended]
    if late := [each for each in left if is_younger(each, since)]:
        seen = [f"{_named(each)} (first seen at {in_utc(each.first_seen)})" for each in late]
        text = f"younger than the message, and so without it, unless it was replayed: {', '.join(seen)}"
        yield Explanation("younger", text, (), database.name)
    if not (there := [each for each in left if each not in late]):
        return
    unbound = ", or its queue was not bound" if since is None or database.now - since >= LIMITS.waiting else ""
    text = (
        f"not handled by {', '.join(map(_named, there))}. It is in the queue, is being handled at this moment, or "
        f"waits there for its next attempt{unbound}"
    )
    exchanges = {each.exchange for each in database.workers if each.kind == RELAY_KIND and each.exchange is not None}
    text += f"; relays publish to the exchanges {', '.join(sorted(exchanges))}" if len(exchanges) > 1 else ""
    queues = sorted({each.queue for each in there})
    blockers = [one for one in database.blockers if any(one.blocks_queue(queue) for queue in queues)]
    text = "; ".join([text, *map(str, blockers)])
    names = ", ".join(map(legible, queues))
    look = f"look at the length of {names} and of outboxkit.delay.…, and whether a consumer runs"
    yield Explanation("not handled", text, (*(one.cure for one in blockers), look), database.name)


def _named(each: KnownHandler) -> str:
    return f"{legible(each.handler)} of queue {legible(each.queue)}"
