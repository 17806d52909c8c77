"""The advice of `outboxkit status`, from the tables and the server's settings."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import Connection

from outboxkit.brokers import Verdict
from outboxkit.cli.status.report import Holder, Session, Sessions, Status, Vacuum
from outboxkit.cli.wording import many, number, printable_name, span
from outboxkit.database import session_names
from outboxkit.errors.failures import printable
from outboxkit.errors.wording import shell_word
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.blockers import Blocker, blocker_of
from outboxkit.operators.hanging import HangingRun, by_consumer, long_runs
from outboxkit.runtime.pauses import RELAY, Pause
from outboxkit.runtime.pauses.holding import Holding
from outboxkit.statements import activity

RIGHT = "pg_read_all_stats"
"""The role whose members see all of the other roles' sessions; pg_monitor includes it."""

_RELAY, _CONSUMER = session_names.RELAY, session_names.CONSUMER


def read_sessions(connection: Connection) -> Sessions:
    """The connections of relays, consumers and other commands, but this one's."""
    all_ = [Session(**row) for row in connection.execute(activity.sessions()).mappings()]
    return Sessions(
        relays=tuple(session for session in all_ if session.name.startswith(_RELAY)),
        consumers=tuple(session for session in all_ if session.name.startswith(_CONSUMER)),
        others=tuple(session for session in all_ if not session.name.startswith((_RELAY, _CONSUMER))),
    )


def hanging(sessions: Sessions, blockers: Sequence[Blocker], now: datetime) -> tuple[HangingRun, ...]:
    """The handlers of consumers that have run for over a minute, but those that wait for somebody's lock."""
    runs = long_runs(((each.pid, each.name, each.open_since) for each in sessions.consumers), now)
    return tuple(run for run in runs if blocker_of(blockers, run.pid) is None)


def read_vacuum(connection: Connection, now: datetime) -> Vacuum:
    """The outbox's dead rows, and what holds the oldest transaction."""
    dead_rows, last_vacuum = connection.execute(activity.vacuum()).one_or_none() or (0, None)
    row = connection.execute(activity.oldest_transaction()).one_or_none()
    if row is None:
        return Vacuum(dead_rows, last_vacuum, None)
    seconds = None if row.since is None else max(0.0, round((now - row.since).total_seconds(), 1))
    holder = Holder(row.kind, row.pid, row.name, row.state, row.since, row.query_start, seconds, row.behind)
    return Vacuum(dead_rows, last_vacuum, holder)


def missing_right(sessions: Sessions, vacuum: Vacuum) -> str | None:
    """The right that this role lacks, if PostgreSQL hid something from it."""
    ours = (*sessions.relays, *sessions.consumers, *sessions.others)
    holder = vacuum.oldest_transaction
    is_holder_hidden = holder is not None and holder.kind == "session" and holder.since is None
    return RIGHT if is_holder_hidden or any(session.since is None for session in ours) else None


PATIENCE = 60
"""Seconds that a message may wait, or a transaction stay open, before it is worth a line."""
LONG_OPEN = 300
"""Seconds that a transaction may stay open if it keeps few dead rows."""
MANY_DEAD_ROWS = 1_000
FAR_BEHIND = 10_000
"""Transactions since the oldest one began, if its age in seconds is not known."""


def advise(report: Status) -> Iterator[str]:
    """A line for each thing that is wrong."""
    if report.missing_parts:
        parts = ", ".join(report.missing_parts)
        yield f"a part of the tables is missing: {parts}: run `outboxkit migrate`, which creates it again"
    yield from _waiting(report)
    yield from _retried(report)
    keys = report.outbox.parked_keys.count
    if keys.value:
        yield f"{many(keys, 'key is', 'keys are')} parked: see `outboxkit dead list`, then replay or discard"
    elif report.dead_letters.open.value:
        yield f"{many(report.dead_letters.open, 'dead letter')} to decide on: see `outboxkit dead list`"
    for blocker in report.blockers:
        yield f"{blocker}: {blocker.cure}"
    for run, others in by_consumer(report.hanging):
        have = "has" if len(others) == 1 else "have"
        more = f", and {many(len(others), 'more run')} of that consumer {have} not ended" if others else ""
        named = "the consumer's log names it and its message"
        yield f"{run}{more}; {named}: if it hangs, restart the consumer, and its messages come again"
    for shared in report.inbox.shared_names:
        yield f"{shared.what} {shared.cure} If a queue was a mistake, forget it with `{shared.mistake}`"
    if report.effects.unknown.value:
        yield (
            f"{many(report.effects.unknown, 'effect')} may have happened or not: the next run decides as its "
            "on_unknown says; see outboxkit_effect, state 'started'"
        )
    if report.vacuum is not None and report.vacuum.oldest_transaction is not None:
        yield from _held_back(report.vacuum, report.vacuum.oldest_transaction, is_explained=bool(report.hanging))
    if report.missing_right is not None:
        yield f"PostgreSQL hides other roles' sessions from this one: GRANT {report.missing_right} to it"


def _waiting(report: Status) -> Iterator[str]:
    """Lines about relays that should publish. Those of other destinations than `default` look alike in the listing."""
    by_destination = report.outbox.by_destination
    paused = {pause.name for pause in report.paused if pause.process == RELAY}
    for pause in sorted(report.paused, key=lambda each: (each.process != RELAY, each.name)):
        yield _paused(pause, next((each for each in report.holding if each.is_of(pause)), None))
    ours = by_destination.get(DEFAULT_DESTINATION) if by_destination else report.outbox
    age = (ours.oldest_age_seconds if ours is not None else None) or 0
    if report.sessions is not None and ours is not None and DEFAULT_DESTINATION not in paused:
        if not report.sessions.relays and (ours.ready.value or age >= PATIENCE):
            waits = f"the oldest message waits for {span(age)}"
            yield f"no relay is connected to this database, and {waits}: start `outboxkit relay`"
        elif report.sessions.relays and age >= PATIENCE:
            yield f"messages wait for {span(age)} though a relay is connected: run `outboxkit doctor`, and read its log"
    for name, there in by_destination.items():
        if name not in {DEFAULT_DESTINATION, *paused} and (there.oldest_age_seconds or 0) >= PATIENCE:
            waits = f"messages to {printable_name(name)} wait for {span(there.oldest_age_seconds or 0)}"
            relay = f"outboxkit relay --destination {shell_word(name)}"
            yield f"{waits}: read the log of its relay, or start `{relay}`"


def _paused(pause: Pause, holding: Holding | None) -> str:
    name = printable_name(pause.name)
    if pause.process == RELAY:
        what = f"message to {name} leaves while its relay is paused"
        option = "" if pause.name == DEFAULT_DESTINATION else f" --destination {shell_word(pause.name)}"
        command = f"outboxkit resume relay{option}"
    else:
        what, command = (
            f"message of queue {name} is handled while it is paused",
            f"outboxkit resume {shell_word(pause.name)}",
        )
    if holding is None or not (holding.holders or holding.others):
        return f"no {what}: `{command}`"
    if holding.others:
        return f"{printable(pause.what)} is paused, and {holding}: end that process, or `{command}`"
    return f"no {what}, and {holding}: `{command}`"


def _retried(report: Status) -> Iterator[str]:
    """A line for each destination whose messages wait for a retry."""
    for each in report.outbox.retried:
        to = "" if each.destination == DEFAULT_DESTINATION else f" to {printable_name(each.destination)}"
        waits = f"{many(each.waiting, f'message{to} waits', f'messages{to} wait')} for a retry"
        if not to and each.last_error.startswith(Verdict.UNROUTABLE):
            cure = "start its consumer (again): it binds one"
            yield f"{waits}, as no queue is bound for the type: {cure}"
        elif each.last_error.startswith(Verdict.POSTPONED):
            who = "a destination asks to wait" if to else "a queue is full or has no leader: start its consumers"
            yield f"{waits}, as {who}; they go by themselves, and `outboxkit doctor` names a full queue"
        else:
            yield f"{waits}: mend what the error names, and see `outboxkit doctor`; they go by themselves"


def _held_back(vacuum: Vacuum, holder: Holder, *, is_explained: bool) -> Iterator[str]:
    if is_held_back(vacuum):
        yield f"{number(vacuum.dead_rows)} dead rows cannot be removed: {_cure(holder)}"
    elif (holder.seconds or 0) >= LONG_OPEN and not (is_explained and (holder.name or "").startswith(_CONSUMER)):
        yield f"a transaction is open for {span(holder.seconds or 0)}: {_cure(holder)}"


def is_held_back(vacuum: Vacuum) -> bool:
    """Whether an old transaction keeps vacuum from removing more dead rows than a busy relay leaves anyway."""
    return is_old(vacuum.oldest_transaction) and vacuum.dead_rows >= MANY_DEAD_ROWS


def is_old(holder: Holder | None) -> bool:
    """Whether the oldest transaction is open for longer than one that does its work."""
    if holder is None:
        return False
    return holder.transactions >= FAR_BEHIND if holder.seconds is None else holder.seconds >= PATIENCE


def _cure(holder: Holder) -> str:
    name = printable_name(holder.name)
    return {
        "session": f"end that transaction, or SELECT pg_terminate_backend({holder.pid})",
        "standby": f"a query on the standby {name} is old; end it there",
        "slot": f"have the slot's reader catch up, or SELECT pg_drop_replication_slot('{name}')",
        "prepared": "COMMIT PREPARED or ROLLBACK PREPARED '" + name.replace("'", "''") + "'",
    }[holder.kind]
