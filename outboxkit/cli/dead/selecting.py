"""The dead letters that a command is about: its filters, and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar

import typer
from sqlalchemy import Row

from outboxkit.cli.options import Key, Type, moment_option, period
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.operators.deadletters import REASONS, SIDES, Selection
from outboxkit.runtime.outage import utc_now

LARGEST = 2**63 - 1
DIGITS = len(str(LARGEST))
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="NAME", help="Only this reason, such as rejected or unroutable.")
]
Side = Annotated[str | None, typer.Option("--side", metavar="outbox|inbox", help="Only this side.")]
Destination = Annotated[
    str | None, typer.Option("--destination", metavar="NAME", help="Only messages to this destination.")
]
Handler = Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Only of this handler.")]
ErrorText = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Only with this text in the error.")]
Since = Annotated[str | None, moment_option("--since", "Only those that died since")]
Until = Annotated[str | None, moment_option("--until", "Only those that died before")]


@dataclass(frozen=True)
class Filters:
    """The filters of a command; a duration counts from now by the database's clock."""

    PANEL: ClassVar = "Filters"
    type_: Type = None
    key: Key = None
    reason: Reason = None
    side: Side = None
    destination: Destination = None
    handler: Handler = None
    error: ErrorText = None
    since: Since = None
    until: Until = None

    def __post_init__(self) -> None:
        if self.side not in (*SIDES, None):
            raise ConfigurationError(f"--side is {self.side!r}: {' or '.join(SIDES)} is accepted")
        if self.reason not in (*REASONS, None):
            reason = printable(repr(self.reason), 60)
            raise ConfigurationError(f"--reason is {reason}: {', '.join(REASONS)} are accepted")
        if "" in (self.handler, self.error):
            name = "--handler" if self.handler == "" else "--error"
            raise ConfigurationError(f"{name} is empty, as an unset variable of a shell is: a text is accepted")
        self.selection(utc_now())  # which refuses a time that cannot be used

    @property
    def is_empty(self) -> bool:
        """Whether there is no filter at all."""
        return all(value is None for value in vars(self).values())

    def selection(self, now: datetime, *, resolved: bool = False) -> Selection:
        """The selection of these filters."""
        since, before = period(self.since, self.until, now)
        return Selection(
            type=self.type_,
            key=self.key,
            reason=self.reason,
            side=self.side,
            destination=self.destination,
            handler=self.handler,
            error=self.error,
            before=before,
            since=since,
            resolved=resolved,
        )


def with_ids(selection: Selection, ids: Sequence[str]) -> Selection:
    """The selection with these dead letters: digits are a dead letter's number, all else is a message id."""
    numbers = tuple(int(one) for one in ids if is_number(one))
    return replace(selection, numbers=numbers, message_ids=tuple(one for one in ids if not is_number(one)))


def is_number(argument: str) -> bool:
    """Whether an argument is a dead letter's number."""
    return len(argument) <= DIGITS and argument.isascii() and argument.isdigit() and int(argument) <= LARGEST


def refuse_missing(ids: Sequence[str], rows: Sequence[Row[Any]]) -> None:
    """Refuse arguments that name none of these dead letters."""
    known = {name for row in rows for name in (str(row.id), row.message_id)}
    if missing := [one for one in ids if one not in known]:
        names = ", ".join(map(repr, missing[:5])) + (" …" if len(missing) > 5 else "")
        raise ConfigurationError(
            f"no dead letter is {names}; a number or a message id from `outboxkit dead list --all` is accepted"
        )
