"""Reads what PostgreSQL knows of outboxkit's processes, and of what keeps vacuum from its work."""

from datetime import datetime

from sqlalchemy import Connection

from outboxkit.cli.status.report import Holder, Session, Sessions, Vacuum
from outboxkit.statements import activity

RIGHT = "pg_read_all_stats"
"""The role whose members see all of the other roles' sessions; pg_monitor includes it."""

_RELAY, _CONSUMER = "outboxkit relay", "outboxkit consumer"


def read_sessions(connection: Connection) -> Sessions:
    """The connections of relays, consumers and other commands, but this one's."""
    found = [Session(**row) for row in connection.execute(activity.sessions()).mappings()]
    return Sessions(
        relays=tuple(session for session in found if session.name.startswith(_RELAY)),
        consumers=tuple(session for session in found if session.name.startswith(_CONSUMER)),
        others=tuple(session for session in found if not session.name.startswith((_RELAY, _CONSUMER))),
    )


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
    """The right that this role lacks, where PostgreSQL hid something that was asked for."""
    ours = (*sessions.relays, *sessions.consumers, *sessions.others)
    holder = vacuum.oldest_transaction
    is_holder_hidden = holder is not None and holder.kind == "session" and holder.since is None
    return RIGHT if is_holder_hidden or any(session.since is None for session in ours) else None
