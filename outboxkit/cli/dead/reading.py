"""`outboxkit dead list` and `outboxkit dead show`, and the filters that all `dead` commands share."""

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from sqlalchemy import Row

from outboxkit.cli.dead import show as shown
from outboxkit.cli.options import DATABASE, AsJson, By, duration, with_settings
from outboxkit.cli.wording import fold_width, number
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.operators.deadletters import DeadLetterPage, DeadLetters, ReplayRules, Selection
from outboxkit.runtime import compose
from outboxkit.runtime.settings import Settings

SIDES = ("outbox", "inbox")
REASONS = (
    *("unroutable", "rejected", "expired"),
    *("failed", "undecodable", "malformed", "no handler", "stale", "crash", "dropped", "newer version"),
)
"""The reasons of a relay, and those of a consumer."""
LARGEST = 2**63 - 1
DIGITS = len(str(LARGEST))
Id = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this message id; may be repeated.")]
Type = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only messages of this type.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")]
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


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a command, and by whom it is given; ages become moments by the database's clock."""

    columns: Selection = field(default_factory=Selection)
    older: timedelta | None = None
    newer: timedelta | None = None
    by: str | None = field(default=None, compare=False)

    @property
    def says_nothing(self) -> bool:
        """Whether there is no filter at all."""
        return self == Filters()

    def selection(self, now: datetime, ids: tuple[str, ...] = (), *, resolved: bool = False) -> Selection:
        """The selection of these filters and ids: digits are a dead letter's number, all else is a message id."""
        return replace(
            self.columns,
            numbers=tuple(int(one) for one in ids if is_number(one)),
            message_ids=self.columns.message_ids + tuple(one for one in ids if not is_number(one)),
            before=None if self.older is None else now - self.older,
            since=None if self.newer is None else now - self.newer,
            resolved=resolved,
        )


def rules(settings: Settings, *, accept_stale: bool = False) -> ReplayRules:
    """The rules for replaying dead letters of the inbox, from the consumers' settings."""
    return ReplayRules(settings.inbox_retention, accept_stale=accept_stale, has_readers=bool(settings.readers))


def is_number(argument: str) -> bool:
    """Whether an argument is a dead letter's number."""
    return len(argument) <= DIGITS and argument.isascii() and argument.isdigit() and int(argument) <= LARGEST


FILTERS: dict[str, Any] = {
    "id_": Id,
    "type_": Type,
    "key": Key,
    "reason": Reason,
    "side": Side,
    "destination_": Destination,
    "older_than": Older,
    "newer_than": Newer,
}
"""The options of all `Filters`, by their parameters; most are columns of a `Selection`."""


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(settings, filters, ...)` into one that takes the filters as options instead."""
    return _with(FILTERS, command)


def with_filters_and_operator(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(settings, filters, ...)` into one that takes the filters and the operator as options instead."""
    return _with(FILTERS | {"by": By}, command)


def _with(added: dict[str, Any], command: Callable[..., None]) -> Callable[..., None]:
    def with_options(settings: Settings, **arguments: Any) -> None:
        options = {name: arguments.pop(name) for name in added}
        command(settings, _filters(**options), **arguments)

    first, _, *own = inspect.signature(command).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in added.items()]
    with_options.__signature__ = inspect.Signature([first, *options, *own])  # type: ignore[attr-defined]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    return with_options


def _filters(
    *,
    id_: Sequence[str] | None,
    older_than: str | None,
    newer_than: str | None,
    by: str | None = None,
    **columns: str | None,
) -> Filters:
    side = columns["side"]
    if side is not None and side not in SIDES:
        raise ConfigurationError(f"--side is {side!r}: {' or '.join(SIDES)} is accepted")
    reason = columns["reason"]
    if reason is not None and reason not in REASONS:
        raise ConfigurationError(f"--reason is {printable(repr(reason), 60)}: {', '.join(REASONS)} are accepted")
    same: dict[str, Any] = {name.rstrip("_"): value for name, value in columns.items()}
    return Filters(
        Selection(message_ids=tuple(id_ or ()), **same),
        older=_age("--older-than", older_than),
        newer=_age("--newer-than", newer_than),
        by=by,
    )


def _age(option: str, text: str | None) -> timedelta | None:
    return None if text is None else duration(option, text)


MOST_SHOWN = 100

Limit = Annotated[
    int, typer.Option("--limit", metavar="NUMBER", min=1, max=10_000, help="The newest N.", show_default=True)
]
All = Annotated[bool, typer.Option("--all", help="Also replayed and discarded ones.")]
Named = Annotated[list[str], typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")]


@with_settings(*DATABASE, "inbox_retention")
@with_filters
def list_(
    settings: Settings, filters: Filters, *, limit: Limit = 50, all_: All = False, as_json: AsJson = False
) -> None:
    """List dead letters, the newest first: those that are neither replayed nor discarded.

    Example: outboxkit dead list --type OrderConfirmed --newer-than 1d
    """
    page = asyncio.run(_find(settings, filters, limit=limit, resolved=all_))
    more, judge = page.more, rules(settings)
    if as_json:
        listed = [shown.listed(row, judge.refusal(row, page.now)) for row in page.rows]
        _print_json({"dead_letters": listed, "more": more.value, "at_least": more.at_least})
        return
    if not page.rows:
        typer.echo("no dead letters" if all_ and filters.says_nothing else _nothing(filters, resolved=all_))
        return
    refused = [judge.refusal(row, page.now) for row in page.rows]
    Console(highlight=False, width=fold_width()).print(shown.table(page.rows, refused, page.now))
    for line in shown.legend(page.rows, refused):
        typer.echo(line)
    if more.value:
        typer.echo(f"and {number(more)} more: --limit shows more of them, filters fewer")


@with_settings(*DATABASE, "inbox_retention")
def show(settings: Settings, ids: Named, *, as_json: AsJson = False) -> None:
    """Show all of a dead letter, open or not: its reason, times, headers, payload, and who resolved it.

    A message id may have several. Exit 2 if there is none.

    Example: outboxkit dead show 7
    """
    now, rows = asyncio.run(_read(settings, tuple(ids)))
    judge = rules(settings)
    missing = [one for one in ids if not any(one in (str(row.id), row.message_id) for row in rows)]
    if as_json:
        _print_json([shown.detailed(row, judge.refusal(row, now)) for row in rows])
    else:
        for index, row in enumerate(rows):
            typer.echo(("\n" if index else "") + "\n".join(shown.one(row, judge.refusal(row, now), now)))
    if missing:
        raise ConfigurationError(nowhere(missing))
    if len(rows) == MOST_SHOWN:
        typer.echo(f"the first {MOST_SHOWN} are shown", err=True)


def nowhere(missing: Sequence[str]) -> str:
    """The error text for arguments that name no dead letter."""
    names = ", ".join(repr(one) for one in missing[:5]) + (" …" if len(missing) > 5 else "")
    return f"no dead letter is {names}; a number or a message id from `outboxkit dead list --all` is accepted"


def _nothing(filters: Filters, *, resolved: bool) -> str:
    what = "no dead letter" if resolved else "no open dead letter"
    return what if filters.says_nothing else f"{what} matches"


def _print_json(document: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document)).decode() + "\n")


async def _find(settings: Settings, filters: Filters, *, limit: int, resolved: bool) -> DeadLetterPage:
    engine = compose.database(settings, name="outboxkit dead")
    try:
        letters = DeadLetters(engine)
        return await letters.find(filters.selection(await letters.now(), resolved=resolved), limit=limit)
    finally:
        await engine.dispose()


async def _read(settings: Settings, ids: tuple[str, ...]) -> tuple[datetime, Sequence[Row[Any]]]:
    engine = compose.database(settings, name="outboxkit dead")
    try:
        letters = DeadLetters(engine)
        now = await letters.now()
        return now, await letters.read(Filters().selection(now, ids, resolved=True), limit=MOST_SHOWN)
    finally:
        await engine.dispose()
