"""The report as lines for people. Pure."""

from collections import Counter
from collections.abc import Iterator

from outboxkit.cli.status.advice import is_held_back, is_old
from outboxkit.cli.status.report import (
    DeadLetterCounts,
    Effects,
    Holder,
    Idempotency,
    Inbox,
    OfDestination,
    Outbox,
    ParkedKey,
    Published,
    Session,
    Sessions,
    Status,
    Vacuum,
)
from outboxkit.cli.wording import folded, many, number, printable_name, span
from outboxkit.database.session_names import OURS
from outboxkit.message import DEFAULT_DESTINATION

LABEL = 14
SHOWN_TYPES = 20
LONGEST_ERROR = 200


def lines(report: Status, *, width: int, verbose: bool = False) -> Iterator[str]:
    """The whole report, folded to the width; `verbose` lists each connection."""
    parts: list[tuple[str, Iterator[str]]] = [
        ("database", filter(None, [report.database])),
        ("broker", filter(None, [report.broker])),
        ("advice", iter(report.advice)),
        ("paused", (f"{printable_name(pause.what)} {pause.terms}" for pause in report.paused)),
        ("outbox", _outbox(report.outbox)),
        ("inbox", _inbox(report.inbox)),
        ("dead letters", _dead_letters(report.dead_letters)),
        ("published", _published(report.published)),
        ("idempotency", _idempotency(report.idempotency)),
        ("effects", _effects(report.effects)),
    ]
    if report.sessions is not None and report.vacuum is not None:
        parts += _sessions(report.sessions, verbose=verbose)
        parts.append(("vacuum", _vacuum(report.vacuum)))
    parts.append(("tables", iter([f"version {report.schema_version}"])))
    for label, texts in parts:
        for index, text in enumerate(texts):
            start = (label if index == 0 else "").ljust(LABEL)
            inner = len(text) - len(text.lstrip())
            yield from folded(start + text, width, " " * (LABEL + inner + 2))


def _outbox(outbox: Outbox) -> Iterator[str]:
    age = "" if outbox.oldest_age_seconds is None else f", the oldest for {span(outbox.oldest_age_seconds)}"
    yield f"{number(outbox.pending)} pending{age}"
    if outbox.pending.value > outbox.ready.value:
        yield f"  {_states(outbox)}"
    if outbox.next_due is not None:
        yield f"  next due: {outbox.next_due:%Y-%m-%d %H:%M:%S} UTC"
    most = sorted(outbox.by_type.items(), key=lambda each: (-each[1].pending.value, each[0]))[:SHOWN_TYPES]
    for kind, of_type in sorted(most):
        failed = f", {number(of_type.failed_before)} failed before" if of_type.failed_before.value else ""
        yield f"  {printable_name(kind)}: {number(of_type.pending)}{failed}"
    if len(outbox.by_type) > SHOWN_TYPES:
        yield f"  and {len(outbox.by_type) - SHOWN_TYPES} more types"
    for name, there in outbox.by_destination.items():
        age = "" if there.oldest_age_seconds is None else f", the oldest for {span(there.oldest_age_seconds)}"
        yield f"to {printable_name(name)}: {_states(there)}{age}"
    for why in outbox.retried:
        to = "" if why.destination == DEFAULT_DESTINATION else f" to {printable_name(why.destination)}"
        verb = "waits" if why.waiting.value == 1 else "wait"
        cause = _short(printable_name(why.last_error))
        yield f"{number(why.waiting)}{to} {verb} for a retry, the latest because of: {cause}"
    keys = outbox.parked_keys
    if keys.count.value:
        yield f"{many(keys.count, 'key')} parked"
    for key in keys.top:
        waiting = f"{number(key.waiting)} waiting" if key.waiting.value else "nothing waits"
        yield f"  {_key(key)}: {waiting} behind {many(key.dead, 'dead letter')}"
    if keys.more.value:
        yield f"  and {number(keys.more)} more"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 1] + "…"


def _states(counts: Outbox | OfDestination) -> str:
    states = {"ready": counts.ready, "delayed": counts.delayed, "held": counts.held, "parked": counts.parked}
    return ", ".join(f"{number(count)} {name}" for name, count in states.items() if count.value)


def _key(parked: ParkedKey) -> str:
    elsewhere = "" if parked.destination == DEFAULT_DESTINATION else f" to {printable_name(parked.destination)}"
    return printable_name(parked.key) + elsewhere


def _inbox(inbox: Inbox) -> Iterator[str]:
    yield f"{number(inbox.processed)} processed"
    for handler, count in inbox.by_handler.items():
        yield f"  {printable_name(handler)}: {number(count)}"
    for shared in inbox.shared_names:
        queues = printable_name(", ".join(place.queue for place in shared.places))
        yield f"  error: {printable_name(shared.handler)} is a handler of queues {queues}"


def _dead_letters(letters: DeadLetterCounts) -> Iterator[str]:
    resolved = f", {number(letters.resolved)} resolved" if letters.resolved.value else ""
    yield f"{number(letters.open)} open{resolved}"
    for row in letters.by_reason:
        yield f"  {printable_name(row.side)}, {printable_name(row.reason)}: {number(row.count)}"


def _published(published: Published) -> Iterator[str]:
    if published.oldest is not None:
        yield f"{number(published.kept)} kept, the oldest of {published.oldest:%Y-%m-%d %H:%M} UTC"


def _idempotency(idempotency: Idempotency) -> Iterator[str]:
    if idempotency.remembered.value:
        yield f"{many(idempotency.remembered, 'key')} remembered"


def _effects(effects: Effects) -> Iterator[str]:
    if effects.unknown.value:
        yield f"{number(effects.unknown)} unknown: started, and nobody knows whether they happened"


def _sessions(sessions: Sessions, *, verbose: bool) -> list[tuple[str, Iterator[str]]]:
    named = (("consumers", sessions.consumers), ("others", sessions.others))
    return [
        ("relays", _connections(sessions.relays, verbose=verbose)),
        *((label, _connections(ours, verbose=verbose)) for label, ours in named if ours),
    ]


def _connections(sessions: tuple[Session, ...], *, verbose: bool) -> Iterator[str]:
    """A line for each kind of process and queue, and if `verbose` for each of its connections."""
    if not sessions:
        yield "none connected"
    for name, count in sorted(Counter(session.name for session in sessions).items()):
        yield f"{printable_name(name.removeprefix(OURS))}: {many(count, 'connection')}"
        for session in sessions if verbose else ():
            since = f"since {session.since:%Y-%m-%d %H:%M} UTC" if session.since else "hidden from this role"
            parts = [session.state, f"from {session.address}" if session.address else None, since]
            if session.name == name:
                yield f"  {session.pid}: {', '.join(part for part in parts if part)}"


def _vacuum(vacuum: Vacuum) -> Iterator[str]:
    last = f"{vacuum.last_vacuum:%Y-%m-%d %H:%M} UTC" if vacuum.last_vacuum else "never"
    yield f"{many(vacuum.dead_rows, 'dead row')} in the outbox, last vacuum {last}"
    holder = vacuum.oldest_transaction
    if holder is not None and is_old(holder):
        yield f"  {'held back by' if is_held_back(vacuum) else 'oldest transaction:'} {_holder(holder)}"


def _holder(holder: Holder) -> str:
    what = {"slot": "replication slot", "prepared": "prepared transaction"}.get(holder.kind, holder.kind)
    name = printable_name(holder.name)
    who = f"{what} {name}" if holder.pid is None else f"{what} {holder.pid} ({name})"
    state = f", {holder.state}" if holder.state else ""
    far = f", {many(holder.transactions, 'transaction')} ago"
    query = f", last query at {holder.query_start:%Y-%m-%d %H:%M:%S} UTC" if holder.query_start else ""
    return who + state + (far if holder.seconds is None else f" for {span(holder.seconds)}") + query
