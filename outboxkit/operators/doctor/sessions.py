"""Sessions, slots and prepared transactions that hold back vacuum or lock the tables, and handlers that hang."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row

from outboxkit import statements
from outboxkit.database.session_names import is_of_consumer, queues_of
from outboxkit.errors.figures import many, number, printable_name, span
from outboxkit.operators import sql
from outboxkit.operators.blockers import blocker_of, read_blockers
from outboxkit.operators.doctor.installation import Database
from outboxkit.operators.findings import Diagnosis, finding, quoted
from outboxkit.statements import activity


def check_locks(database: Database) -> Iterator[Diagnosis]:
    """Sessions whose locks keep others from writing a table, or for which outboxkit's sessions wait."""
    for blocker in read_blockers(database.connection, database.now, patience=database.limits.lock):
        yield finding(
            "sessions-blocked",
            blocker=blocker,
            step=f"{blocker.step[0].upper()}{blocker.step[1:]}",
            end=blocker.command,
            role=quoted(blocker.role) if blocker.is_idle else None,
        )
    for row in database.rows(sql.doctor.table_locks()):
        if row.since is None or database.now - row.since < database.limits.lock:
            continue
        yield finding(
            "table-locked",
            pid=row.pid,
            name=printable_name(row.application_name),
            state=row.state or "hidden",
            table=printable_name(row.name),
            mode=row.mode,
            age=span((database.now - row.since).total_seconds()),
            waiting=number(row.waiting),
        )


def check_handlers(database: Database) -> Iterator[Diagnosis]:
    """Handlers of consumers that do not end, unless they wait for a lock: one finding for a consumer."""
    limits, now = database.limits, database.now
    blockers = read_blockers(database.connection, now, patience=limits.lock)
    open_ = dict[str, list[tuple[float, int]]]()
    for each in database.rows(activity.sessions()):
        is_long = each.open_since is not None and now - each.open_since >= limits.handler
        if is_long and is_of_consumer(each.name) and blocker_of(blockers, each.pid) is None:
            open_.setdefault(queues_of(each.name), []).append(((now - each.open_since).total_seconds(), each.pid))
    for queue, runs in open_.items():
        (seconds, pid), *others = sorted(runs, reverse=True)
        yield finding(
            "handler-hangs",
            worse=seconds >= limits.handler_long.total_seconds(),
            queue=printable_name(queue),
            age=span(seconds),
            pid=pid,
            more=f" {many(len(others), 'more session')} of that consumer too." if others else "",
            pids=(pid, *(each for _, each in others)),
        )


def check_transactions(database: Database) -> Iterator[Diagnosis]:
    """Each holder of an old transaction id that vacuum must spare."""
    holders = database.rows(activity.oldest_transactions())
    for holder in holders:
        if _is_old(holder, database) and not (holder.kind == "session" and is_of_consumer(holder.name)):
            yield _of_holder(holder, database)
    hidden = [each for each in holders if each.kind == "session" and each.since is None]
    if hidden or any(session.since is None for session in database.rows(activity.sessions())):
        (facts,) = database.rows(statements.server.facts())
        yield finding("sessions-hidden", role=printable_name(facts.role), quoted_role=quoted(facts.role))


def _is_old(holder: Row[Any], database: Database) -> bool:
    if holder.since is None:
        return int(holder.behind) >= database.limits.behind
    return bool(database.now - holder.since >= database.limits.transaction)


def _of_holder(holder: Row[Any], database: Database) -> Diagnosis:
    seconds = None if holder.since is None else (database.now - holder.since).total_seconds()
    is_long = seconds is not None and seconds >= database.limits.transaction_long.total_seconds()
    age = (
        f"{number(holder.behind)} transactions ago"
        if seconds is None
        else f"for {span(seconds)}, since {holder.since:%Y-%m-%d %H:%M:%S} UTC"
    )
    name, role = printable_name(holder.name), printable_name(holder.role)
    if holder.kind == "session":
        query = f", its last query at {holder.query_start:%H:%M:%S} UTC," if holder.query_start is not None else ""
        return finding(
            "transaction-open",
            worse=is_long,
            pid=holder.pid,
            role=role,
            quoted_role=quoted(holder.role),
            name=name,
            origin=f" from {holder.address}" if holder.address else "",
            state=f"{holder.state or 'in a state that is hidden from this role'}{query}",
            age=age,
        )
    holds = {
        "standby": f"A query on the standby {name}",
        "slot": f"The replication slot {name}",
        "prepared": f"The prepared transaction {name} of role {role}",
    }
    fact = {"standby": "standby", "slot": "slot", "prepared": "gid"}[holder.kind]
    value = name if holder.kind == "standby" else "'" + name.replace("'", "''") + "'"
    return finding("vacuum-held-back", worse=is_long, holder=holds[holder.kind], age=age, **{fact: value})


def check_slots(database: Database) -> Iterator[Diagnosis]:
    """Replication slots that nobody reads from, and that keep much."""
    for row in database.rows(sql.doctor.slots()):
        if int(row.bytes or 0) >= database.limits.wal_bytes:
            size = f"{number(int(row.bytes or 0) >> 20)} MB"
            yield finding("slot-unused", slot=printable_name(row.name), size=size)
