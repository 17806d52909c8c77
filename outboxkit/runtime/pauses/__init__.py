"""Pauses: an operator holds a relay or the consumers of a queue. Running processes see it within a second.

A pause is a row of `outboxkit_pause`; `pauses/watch.py` is how processes see it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from outboxkit import statements
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.errors.wording import in_utc
from outboxkit.message import is_storable_name
from outboxkit.runtime import audit

RELAY, CONSUMER = "relay", "consumer"
"""The processes that can be paused: the relays of a destination, and the consumers of a queue."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a relay or a consumer.

    Attributes:
        process: `relay` or `consumer`.
        name: the relay's destination, or the consumer's queue.
        since: when it began, by the database's clock.
        until: when it ends by itself; None: when an operator resumes it.
        why: the operator's reason.
        paused_by: the operator.
    """

    process: str
    name: str
    since: datetime
    until: datetime | None
    why: str
    paused_by: str

    def __str__(self) -> str:
        """The pause in a line, for people."""
        return f"{printable(self.what)} is paused {self.terms}"

    @property
    def terms(self) -> str:
        """When it began and ends, by whom it is, and why."""
        until = "" if self.until is None else f" until {in_utc(self.until)}"
        return printable(f"since {in_utc(self.since)}{until} by {self.paused_by}: {self.why}")

    @property
    def what(self) -> str:
        """The name of what is paused, such as `queue billing`."""
        return what_of(self.process, self.name)


def what_of(process: str, name: str) -> str:
    """The name of a relay or consumer as people say it."""
    return f"the relay of destination {name}" if process == RELAY else f"queue {name}"


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
    statement = statements.operations.begin_pause(connection.dialect.name)
    begun = pause_of(connection.execute(statement, row).one())
    filter_ = where(process, name) | {"why": reason} | ({} if lasts is None else {"until": begun.until})
    audit.record_action(connection, "pause", filter_, by=operator, count=1, result=audit.DONE)
    return begun


def resume_process(connection: Connection, process: str, name: str, *, by: str | None = None) -> Pause | None:
    """End a pause, in the connection's transaction; returns it, or None if there was none."""
    statement = statements.operations.end_pause(connection.dialect.name)
    row = connection.execute(statement, {"process": process, "name": name}).one_or_none()
    ended = pause_of(row) if row is not None and row.was_active else None
    count, result = (0, "was not paused") if ended is None else (1, audit.DONE)
    operator = audit.who(connection, by)
    audit.record_action(connection, "resume", where(process, name), by=operator, count=count, result=result)
    return ended


def read_pauses(connection: Connection) -> tuple[Pause, ...]:
    """All pauses of now."""
    rows = connection.execute(statements.operations.active_pauses(connection.dialect.name))
    return tuple(pause_of(row) for row in rows)


def pause_of(row: Row[Any]) -> Pause:
    """The pause of a row."""
    return Pause(row.process, row.name, row.since, row.until, row.why, row.paused_by)


def where(process: str, name: str) -> dict[str, str]:
    """A relay's destination or a consumer's queue, as it is named in the log and in the audit trail."""
    return {"destination" if process == RELAY else "queue": name}
