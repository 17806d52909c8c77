"""An operator pauses the relays of a destination or the consumers of a queue, and resumes them."""

from datetime import timedelta

from sqlalchemy import Connection

from outboxkit import statements
from outboxkit.errors import ConfigurationError
from outboxkit.message import is_storable_name
from outboxkit.operators import audit
from outboxkit.runtime.pauses import Pause, pause_of, what_of, where
from outboxkit.runtime.workers import CONSUMER, RELAY


def pause_process(
    connection: Connection, process: str, name: str, *, why: str, by: str | None = None, lasts: timedelta | None = None
) -> Pause:
    """Pause the relays of a destination or the consumers of a queue, in the connection's transaction.

    If they are paused already, the pause gets this end, reason and operator, and still began when it did.

    Args:
        connection: of the database that they work on.
        process: `relay` or `consumer`.
        name: the relay's destination, or the consumer's queue.
        why: the reason, for people who find the pause.
        by: the operator's name; None: the user of the system.
        lasts: the time after which the pause ends by itself; None: it lasts until `resume_process`.

    Raises:
        ConfigurationError: there is no such process, the name cannot be one, or no reason is given.
    """
    if process not in (RELAY, CONSUMER):
        raise ConfigurationError(f"{process!r} cannot be paused: {RELAY!r} and {CONSUMER!r} are accepted")
    if not is_storable_name(name):
        raise ConfigurationError(f"{what_of(process, name[:20])!r} cannot exist: a name of 1 to 255 bytes is accepted")
    if not why.strip():
        raise ConfigurationError("why is empty: a reason is needed, for those who find the pause")
    operator, reason = audit.who(connection, by), audit.redacted(why.strip())
    row = {"process": process, "name": name, "lasts": lasts, "why": reason, "paused_by": operator}
    statement = statements.pauses.begin_pause(connection.dialect.name)
    begun = pause_of(connection.execute(statement, row).one())
    filter_ = where(process, name) | {"why": reason} | ({} if lasts is None else {"until": begun.until})
    audit.record_action(connection, "pause", filter_, by=operator, count=1, result=audit.DONE)
    return begun


def resume_process(connection: Connection, process: str, name: str, *, by: str | None = None) -> Pause | None:
    """End a pause, in the connection's transaction; returns it, or None if there was none."""
    statement = statements.pauses.end_pause(connection.dialect.name)
    row = connection.execute(statement, {"process": process, "name": name}).one_or_none()
    ended = pause_of(row) if row is not None and row.was_active else None
    count, result = (0, "was not paused") if ended is None else (1, audit.DONE)
    operator = audit.who(connection, by)
    audit.record_action(connection, "resume", where(process, name), by=operator, count=count, result=result)
    return ended
