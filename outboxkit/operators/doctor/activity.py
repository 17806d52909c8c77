"""Sessions, slots and prepared transactions that hold back vacuum, or lock the tables, and how to end each."""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from outboxkit import statements
from outboxkit.database.session_names import is_of_consumer
from outboxkit.errors.wording import many, number, printable_name, span
from outboxkit.operators.blockers import Blocker, blocker_of, read_blockers
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation, Thresholds
from outboxkit.operators.findings import Diagnosis, quoted
from outboxkit.operators.hanging import HangingRun, by_consumer
from outboxkit.schema import partitions
from outboxkit.statements import activity

RIGHT = "pg_read_all_stats"
_WHY = (
    "PostgreSQL keeps every row that was deleted since then, in each table of the database. The tables grow, and "
    "reading them slows down."
)
_NEVER_AGAIN = "So that no session does this again, limit it for the application's role:"
_AS_PROBLEM = 10
"""A transaction that is open for so many times the threshold is a problem."""


_TIMEOUT = '@inbox_handler("...", timeout=60)'


async def check_transactions(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Each holder of an old transaction id that vacuum must spare."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        holders = (await connection.execute(activity.oldest_transactions())).all()
        sessions = (await connection.execute(activity.sessions())).all()
        facts = (await connection.execute(statements.server.facts())).one()
        old = [holder for holder in holders if _is_old(holder, now, installation.thresholds)]
        blockers = await connection.run_sync(read_blockers, now, patience=installation.thresholds.lock)
    ours = [holder for holder in old if holder.kind == "session" and is_of_consumer(holder.name)]
    runs = [HangingRun.of(each.pid, each.name, each.since, now) for each in ours]
    for run, others in by_consumer(run for run in runs if blocker_of(blockers, run.pid) is None):
        seconds = max((each.seconds for each in (run, *others) if each.seconds is not None), default=0.0)
        is_long = seconds >= (_AS_PROBLEM * installation.thresholds.transaction).total_seconds()
        yield of_hung_handler(run, others, problem if is_long else warning, why=_WHY)
    for holder in old:
        if holder not in ours:
            yield _of_holder(holder, now, installation.thresholds)
    hidden = [each for each in holders if each.kind == "session" and each.since is None]
    if hidden or any(session.since is None for session in sessions):
        yield warning(
            "sessions-hidden",
            f"PostgreSQL hides other roles' sessions from role {printable_name(facts.role)}.",
            why="Doctor and status cannot tell how long a transaction is open, nor what a relay does.",
            cure="Let the role that runs them see statistics. This shows no data of any table:",
            commands=(f"GRANT {RIGHT} TO {quoted(facts.role)};",),
        )


def _is_old(holder: Row[Any], now: datetime, thresholds: Thresholds) -> bool:
    if holder.since is None:
        return int(holder.behind) >= thresholds.behind
    return bool(now - holder.since >= thresholds.transaction)


def _of_holder(holder: Row[Any], now: datetime, thresholds: Thresholds) -> Diagnosis:
    is_long = holder.since is not None and now - holder.since >= _AS_PROBLEM * thresholds.transaction
    make = problem if is_long else warning
    name = printable_name(holder.name)
    code, what, cure, commands = {
        "session": _of_session,
        "standby": _of_standby,
        "slot": _of_slot,
        "prepared": _of_prepared,
    }[holder.kind](holder, name)
    age = (
        f"{number(holder.behind)} transactions ago"
        if holder.since is None
        else f"for {span((now - holder.since).total_seconds())}, since {holder.since:%Y-%m-%d %H:%M:%S} UTC"
    )
    return make(code, f"{what} {age}.", why=_WHY, cure=cure, commands=commands)


_Texts = tuple[str, str, str, tuple[str, ...]]
"""Code, the begin of what was found, cure, and commands."""


def _of_session(holder: Row[Any], name: str) -> _Texts:
    role = printable_name(holder.role)
    where = f" from {holder.address}" if holder.address else ""
    state = holder.state or "in a state that is hidden from this role"
    query = f", its last query at {holder.query_start:%H:%M:%S} UTC," if holder.query_start is not None else ""
    return (
        "transaction-open",
        f"Session {holder.pid} of role {role} ({name}){where} is {state}{query} in a transaction that is open",
        (
            "Find what its application does: mostly it forgot to commit, or waits for something else. This ends the "
            f"session, and rolls back what it did. {_NEVER_AGAIN}"
        ),
        (
            f"SELECT pg_terminate_backend({holder.pid});",
            f"ALTER ROLE {quoted(holder.role)} SET idle_in_transaction_session_timeout = '5min';",
        ),
    )


def _of_standby(_: Row[Any], name: str) -> _Texts:
    return (
        "standby-holds-back",
        f"A query on the standby {name} holds back vacuum here; it began",
        "End that query on the standby; its pg_stat_activity names it. This limits such queries, on the standby:",
        ("ALTER SYSTEM SET hot_standby_feedback = off;", "SELECT pg_reload_conf();"),
    )


def _of_slot(_: Row[Any], name: str) -> _Texts:
    return (
        "slot-holds-back",
        f"The replication slot {name} holds back vacuum; its reader has got as far as",
        "Have its reader catch up. If there is none any more, this gives the slot up; its reader cannot go on then:",
        (f"SELECT pg_drop_replication_slot('{name}');",),
    )


def _of_prepared(holder: Row[Any], name: str) -> _Texts:
    return (
        "prepared-transaction",
        f"The prepared transaction {name} of role {printable_name(holder.role)} is neither committed nor rolled back",
        "Ask the transaction manager that prepared it for its decision. Then, in this database, one of these:",
        (f"COMMIT PREPARED {_text(name)};", f"ROLLBACK PREPARED {_text(name)};"),
    )


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


async def check_locks(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Sessions whose locks keep others from writing one of the tables, or for which outboxkit's sessions wait."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        rows = (await connection.execute(statements.doctor.table_locks())).all()
        blockers = await connection.run_sync(read_blockers, now, patience=installation.thresholds.lock)
    for blocker in blockers:
        yield of_blocker(blocker)
    for row in rows:
        if row.since is None or now - row.since < installation.thresholds.lock:
            continue
        held = f"for {span((now - row.since).total_seconds())}, {number(row.waiting)} wait for it"
        yield problem(
            "table-locked",
            f"Session {row.pid} ({printable_name(row.application_name)}), {row.state or 'hidden'}, has locked "
            f"{printable_name(row.name)} ({row.mode}) {held}.",
            why="Nobody else can write the table, and perhaps not read it: requests, relays and consumers stand still.",
            cure="If it is a migration, let it end, and give later ones a lock_timeout. If it was forgotten, end it:",
            commands=(f"SELECT pg_terminate_backend({row.pid});",),
        )


def of_blocker(blocker: Blocker) -> Diagnosis:
    """The finding about a session for whose lock outboxkit's sessions wait."""
    limit = f"ALTER ROLE {quoted(blocker.role)} SET idle_in_transaction_session_timeout = '5min';"
    return problem(
        "sessions-blocked",
        f"{blocker}.",
        why="Each of these sessions stands still, with its place in its process and the messages behind it. To restart "
        "them is of no use: they would wait again.",
        cure=f"{blocker.step[0].upper()}{blocker.step[1:]}. {_NEVER_AGAIN if blocker.is_idle else ''}".strip(),
        commands=(f"{blocker.command};", *([limit] if blocker.is_idle else ())),
    )


async def check_slots(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Replication slots that nobody reads from."""
    async with installation.database() as connection:
        rows = (await connection.execute(statements.doctor.slots())).all()
    for row in rows:
        name, size = printable_name(row.name), f"{number(int(row.bytes or 0) >> 20)} MB"
        if int(row.bytes or 0) < installation.thresholds.wal_bytes:
            yield note(
                "slot-unused",
                f"Nobody reads from the replication slot {name}, which keeps {size} of WAL.",
                why="What it keeps grows with every write.",
                cure="Start the slot's reader again. If there is none any more, this gives the slot up:",
                commands=(f"SELECT pg_drop_replication_slot('{name}');",),
            )
            continue
        yield problem(
            "slot-unused",
            f"Nobody reads from the replication slot {name}, which keeps {size} of WAL.",
            why="The server keeps its write-ahead log for the slot until the disk is full, and then it stops.",
            cure="Start the slot's reader again. If there is none any more, this gives the slot up:",
            commands=(f"SELECT pg_drop_replication_slot('{name}');",),
        )


def of_hung_handler(
    run: HangingRun, others: Sequence[HangingRun], make: Callable[..., Diagnosis], *, why: str
) -> Diagnosis:
    """The finding about a consumer whose transactions are open for long.

    Args:
        run: one of its runs.
        others: the other ones.
        make: `problem` or `warning`.
        why: what an open transaction does to the database.
    """
    more = f" {many(len(others), 'more session')} of that consumer too." if others else ""
    return make(
        "handler-hangs",
        f"{run}: its session, {run.pid}, has a transaction open.{more}",
        why=f"Its place in the consumer is taken, and later messages of its key wait. {why}",
        cure="The consumer's log names handler and message: “handler has not ended”. So does the metric "
        "outboxkit_consumer_longest_run_seconds. Restart that consumer: the message comes again, and nothing of it is "
        "done twice. Then mend what the handler waits for, and give it a timeout. The last lines free the database at "
        "once; a handler that waits for something else goes on until the restart:",
        commands=(_TIMEOUT, *(f"SELECT pg_terminate_backend({each.pid});" for each in (run, *others))),
    )
