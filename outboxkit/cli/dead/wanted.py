"""Which dead letters a command is about: its arguments and filters, as one selection."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from outboxkit.deadletters import Rules, Selection
from outboxkit.errors import ConfigurationError
from outboxkit.settings import Settings, parse_duration

SIDES = ("outbox", "inbox")
LARGEST = 2**63 - 1
MEMORY = ("inbox_retention", "clock_skew")
"""Settings that say what is stale."""

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
    str | None, typer.Option("--older-than", metavar="DURATION", help="Only what died longer ago, such as 2h or 7d.")
]
Newer = Annotated[str | None, typer.Option("--newer-than", metavar="DURATION", help="Only what died since then.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; ages become moments by the database's clock."""

    message_ids: tuple[str, ...] = ()
    type: str | None = None
    key: str | None = None
    reason: str | None = None
    side: str | None = None
    destination: str | None = None
    older: timedelta | None = None
    newer: timedelta | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether there is no filter at all."""
        return self == Wanted()

    def selection(self, now: datetime, given: tuple[str, ...] = (), *, resolved: bool = False) -> Selection:
        """As a selection, with these arguments: digits are a dead letter's number, all else is a message id."""
        numbers = tuple(int(one) for one in given if is_number(one))
        named = tuple(one for one in given if not is_number(one))
        return Selection(
            numbers=numbers,
            message_ids=self.message_ids + named,
            type=self.type,
            key=self.key,
            reason=self.reason,
            side=self.side,
            destination=self.destination,
            before=None if self.older is None else now - self.older,
            since=None if self.newer is None else now - self.newer,
            resolved=resolved,
        )


def rules(chosen: Settings, *, accept_stale: bool = False) -> Rules:
    """Which dead letters of the inbox may be replayed, as the consumers' settings say."""
    return Rules(chosen.inbox_retention, chosen.clock_skew, accept_stale)


def is_number(given: str) -> bool:
    """Whether an argument is a dead letter's number."""
    return given.isascii() and given.isdigit() and int(given) <= LARGEST


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
"""The options that stand for a `Wanted`, by their parameters."""


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(chosen, wanted, ...)` into one that takes the filters as options instead."""

    def with_options(chosen: Settings, **given: Any) -> None:
        filters = {name: given.pop(name) for name in FILTERS}
        command(chosen, _wanted(**filters), **given)

    first, _, *own = inspect.signature(command).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    filters = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in FILTERS.items()]
    with_options.__signature__ = inspect.Signature([first, *filters, *own])  # type: ignore[attr-defined]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    return with_options


def _wanted(
    *, id_: Sequence[str] | None, side: str | None, older_than: str | None, newer_than: str | None, **more: str | None
) -> Wanted:
    if side is not None and side not in SIDES:
        raise ConfigurationError(f"--side is {side!r}: {' or '.join(SIDES)} is accepted")
    return Wanted(
        message_ids=tuple(id_ or ()),
        type=more["type_"],
        key=more["key"],
        reason=more["reason"],
        side=side,
        destination=more["destination_"],
        older=_age("--older-than", older_than),
        newer=_age("--newer-than", newer_than),
    )


def _age(option: str, text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} is {text!r}: {error}") from None
