"""Pauses: an operator holds a relay or the consumers of a queue. Running processes see it within a second.

A pause is a row of `outboxkit_pause`; `pauses/watch.py` is how processes see it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from outboxkit import statements
from outboxkit.errors.failures import printable
from outboxkit.errors.figures import in_utc
from outboxkit.runtime.workers import RELAY


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a relay or a consumer.

    Attributes:
        since: when it began, by the database's clock.
        until: when it ends by itself; None: when an operator resumes it.
        why: the operator's reason.
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


def read_pauses(connection: Connection) -> tuple[Pause, ...]:
    """All pauses of now."""
    rows = connection.execute(statements.pauses.active_pauses(connection.dialect.name))
    return tuple(pause_of(row) for row in rows)


def pause_of(row: Row[Any]) -> Pause:
    """The pause of a row."""
    return Pause(row.process, row.name, row.since, row.until, row.why, row.paused_by)


def where(process: str, name: str) -> dict[str, str]:
    """A relay's destination or a consumer's queue, as it is named in the log and in the audit trail."""
    return {"destination" if process == RELAY else "queue": name}
