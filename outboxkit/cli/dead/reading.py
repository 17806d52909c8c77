"""`outboxkit dead list` and `outboxkit dead show`, and the filters that all `dead` commands share."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

import typer
from sqlalchemy import Row

from outboxkit.cli.connections import connected
from outboxkit.cli.dead import show as shown
from outboxkit.cli.options import AsJson, Ids, Key, Limit, Type, duration, with_options
from outboxkit.cli.wording import print_json, print_table
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.errors.wording import number
from outboxkit.operators.deadletters import DeadLetterPage, DeadLetters, ReplayRules, Selection
from outboxkit.runtime.settings import Settings

SIDES = ("outbox", "inbox")
REASONS = (
    *("unroutable", "rejected", "expired"),
    *("failed", "undecodable", "malformed", "no handler", "stale", "crash", "dropped", "newer version"),
)
"""The reasons of a relay, and those of a consumer."""
LARGEST = 2**63 - 1
DIGITS = len(str(LARGEST))
MOST_SHOWN = 100
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="NAME", help="Only this reason, such as rejected or unroutable.")
]
Side = Annotated[str | None, typer.Option("--side", metavar="outbox|inbox", help="Only this side.")]
Destination = Annotated[
    str | None, typer.Option("--destination", metavar="NAME", help="Only messages to this destination.")
]
Older = Annotated[
    str | None, typer.Option("--older-than", metavar="DURATION", help="Only older dead letters, such as 2h or 7d.")
]
Newer = Annotated[str | None, typer.Option("--newer-than", metavar="DURATION", help="Only newer dead letters.")]
All = Annotated[bool, typer.Option("--all", help="Also replayed and discarded ones.")]
Named = Annotated[list[str], typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")]


@dataclass(frozen=True)
class Filters:
    """The filters of a command; ages become moments by the database's clock.

    Raises:
        ConfigurationError: there is no such side or reason, or an age reads otherwise than a duration.
    """

    PANEL: ClassVar = "Filters"
    id_: Ids = None
    type_: Type = None
    key: Key = None
    reason: Reason = None
    side: Side = None
    destination_: Destination = None
    older_than: Older = None
    newer_than: Newer = None

    def __post_init__(self) -> None:
        if self.side not in (*SIDES, None):
            raise ConfigurationError(f"--side is {self.side!r}: {' or '.join(SIDES)} is accepted")
        if self.reason not in (*REASONS, None):
            reason = printable(repr(self.reason), 60)
            raise ConfigurationError(f"--reason is {reason}: {', '.join(REASONS)} are accepted")
        self.age("older_than"), self.age("newer_than")

    @property
    def is_empty(self) -> bool:
        """Whether there is no filter at all."""
        return all(value in (None, []) for value in vars(self).values())

    def age(self, name: str) -> timedelta | None:
        """The age that one of the two fields has."""
        text = getattr(self, name)
        return None if text is None else duration(f"--{name.replace('_', '-')}", text)

    def selection(self, now: datetime, *, resolved: bool = False) -> Selection:
        """The selection of these filters."""
        older, newer = self.age("older_than"), self.age("newer_than")
        return Selection(
            message_ids=tuple(self.id_ or ()),
            type=self.type_,
            key=self.key,
            reason=self.reason,
            side=self.side,
            destination=self.destination_,
            before=None if older is None else now - older,
            since=None if newer is None else now - newer,
            resolved=resolved,
        )


def named(selection: Selection, ids: Sequence[str]) -> Selection:
    """The selection with these dead letters: digits are a dead letter's number, all else is a message id."""
    numbers = tuple(int(one) for one in ids if is_number(one))
    others = tuple(one for one in ids if not is_number(one))
    return replace(selection, numbers=numbers, message_ids=selection.message_ids + others)


def is_number(argument: str) -> bool:
    """Whether an argument is a dead letter's number."""
    return len(argument) <= DIGITS and argument.isascii() and argument.isdigit() and int(argument) <= LARGEST


def rules(settings: Settings, *, accept_stale: bool = False) -> ReplayRules:
    """The rules for replaying dead letters of the inbox, from the consumers' settings."""
    return ReplayRules(settings.inbox_retention, accept_stale=accept_stale, has_readers=bool(settings.readers))


@with_options("database_url")
def list_(
    settings: Settings, filters: Filters, *, limit: Limit = 50, all_: All = False, as_json: AsJson = False
) -> None:
    """List dead letters, the newest first: those that are neither replayed nor discarded.

    Example: outboxkit dead list --type OrderConfirmed --newer-than 1d
    """
    page = asyncio.run(_find(settings, filters, limit=limit, resolved=all_))
    more, judge = page.more, rules(settings)
    refused = [judge.refusal(row, page.now) for row in page.rows]
    if as_json:
        listed = [shown.listed(row, why) for row, why in zip(page.rows, refused, strict=True)]
        print_json({"dead_letters": listed, "more": more.value, "at_least": more.at_least})
        return
    if not page.rows:
        nothing = "no dead letter" if all_ else "no open dead letter"
        typer.echo(nothing if filters.is_empty else f"{nothing} matches")
        return
    print_table(shown.COLUMNS, (shown.cells(row, why, page.now) for row, why in zip(page.rows, refused, strict=True)))
    for line in shown.legend(page.rows, refused):
        typer.echo(line)
    if more.value:
        typer.echo(f"and {number(more)} more: --limit shows more of them, filters fewer")


@with_options("database_url")
def show(settings: Settings, ids: Named, *, as_json: AsJson = False) -> None:
    """Show all of a dead letter, open or not: its reason, times, headers, payload, and who resolved it.

    A message id may have several. Exit 2 if there is none.

    Example: outboxkit dead show 7
    """
    now, rows = asyncio.run(_read(settings, ids))
    judge = rules(settings)
    if as_json:
        print_json([shown.detailed(row, judge.refusal(row, now)) for row in rows])
    else:
        for index, row in enumerate(rows):
            typer.echo(("\n" if index else "") + "\n".join(shown.one(row, judge.refusal(row, now), now)))
    refuse_missing(ids, rows)
    if len(rows) == MOST_SHOWN:
        typer.echo(f"the first {MOST_SHOWN} are shown", err=True)


def refuse_missing(ids: Sequence[str], rows: Sequence[Row[Any]]) -> None:
    """Refuse arguments that name none of these dead letters.

    Raises:
        ConfigurationError: there is one.
    """
    known = {name for row in rows for name in (str(row.id), row.message_id)}
    if missing := [one for one in ids if one not in known]:
        names = ", ".join(map(repr, missing[:5])) + (" …" if len(missing) > 5 else "")
        raise ConfigurationError(
            f"no dead letter is {names}; a number or a message id from `outboxkit dead list --all` is accepted"
        )


async def _find(settings: Settings, filters: Filters, *, limit: int, resolved: bool) -> DeadLetterPage:
    async with connected(settings, "dead") as engine:
        letters = DeadLetters(engine)
        return await letters.find(filters.selection(await letters.now(), resolved=resolved), limit=limit)


async def _read(settings: Settings, ids: Sequence[str]) -> tuple[datetime, Sequence[Row[Any]]]:
    async with connected(settings, "dead") as engine:
        letters = DeadLetters(engine)
        return await letters.now(), await letters.read(named(Selection(resolved=True), ids), limit=MOST_SHOWN)
