"""`outboxkit waiting`: list messages that wait for a time, make them due at once, or cancel them."""

import asyncio
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, ClassVar

import typer

from outboxkit.cli.commands import group
from outboxkit.cli.confirming import ChangeOptions, refuse_unclear, work_through
from outboxkit.cli.connections import connected, in_transaction
from outboxkit.cli.options import AsJson, Key, Limit, Type, duration, with_options
from outboxkit.cli.wording import print_json, print_table
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import in_utc, many, number, printable_name
from outboxkit.exit_codes import INCOMPLETE
from outboxkit.operators.sql.waiting import WaitingSelection
from outboxkit.operators.waiting import ChangedMessages, WaitingChange, change_waiting, find_waiting, plan_change
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings

COLUMNS = {
    **dict.fromkeys(("due", "message id"), "whole"),
    **dict.fromkeys(("type", "key", "destination", "state"), "folded"),
}
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids.")]
After = Annotated[
    str | None, typer.Option("--due-after", metavar="DURATION", help="Only those due in more than this time: 90d.")
]
All = Annotated[bool, typer.Option("--all", help="All waiting messages, without ids or filters.")]


@dataclass(frozen=True)
class WaitingFilters:
    """The filters of a command; times are from now on."""

    PANEL: ClassVar = "Filters"
    type_: Type = None
    key: Key = None
    due_after: After = None

    def __post_init__(self) -> None:
        self.selection()  # which refuses a time that cannot be used

    def selection(self, ids: tuple[str, ...] = ()) -> WaitingSelection:
        """The selection of these filters, or of these ids."""
        after = None if self.due_after is None else utc_now() + duration("--due-after", self.due_after)
        return WaitingSelection(ids, self.type_, self.key, after)


@with_options()
def list_waiting(settings: Settings, filters: WaitingFilters, *, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List messages of the outbox that wait for their time or for another publish, the next due first.

    Parked ones are `outboxkit dead`'s. Messages of failed handlers wait at the broker: `outboxkit status` counts them.

    Example: outboxkit waiting list --due-after 90d
    """
    find = partial(find_waiting, waiting=filters.selection(), limit=limit + 1)
    rows, now = in_transaction(settings, "waiting", find, only_reads=True)
    if as_json:
        print_json({"waiting": [dict(row._mapping) for row in rows[:limit]], "more": len(rows) > limit})  # noqa: SLF001 - its public view
    elif not rows:
        nothing = "no message of the outbox waits for its time or for another publish"
        typer.echo(nothing if filters == WaitingFilters() else "no waiting message matches")
    else:
        print_table(COLUMNS, (_cells(row, now) for row in rows[:limit]))
        if len(rows) > limit:
            typer.echo("and more: --limit shows more of them, filters fewer")


def _cells(row: Any, now: datetime) -> tuple[str, ...]:
    overdue = "overdue" if row.due_at < now - timedelta(minutes=1) else "delayed"
    error = "" if row.last_error is None else f": {row.last_error}"
    state = f"held, attempt {row.attempts} failed{error}" if row.held and row.attempts else "held" + error
    return in_utc(row.due_at), row.message_id, row.type, row.key or "-", row.destination, state if row.held else overdue


@with_options(unlisted="filters")
def due_now(
    settings: Settings,
    filters: WaitingFilters,
    options: ChangeOptions,
    *,
    ids: Ids = None,
    all_: All = False,
) -> None:
    """Make waiting messages due at once. The relay publishes them within seconds; keys keep their order.

    They are chosen by ids, by the filters of `outboxkit waiting list`, or by --all. Safe to kill and to repeat.

    Example: outboxkit waiting due-now --type InvoiceDue --due-after 90d
    """
    _change(settings, "due-now", filters, options, ids or [], all_=all_)


@with_options(unlisted="filters")
def cancel_waiting(
    settings: Settings,
    filters: WaitingFilters,
    options: ChangeOptions,
    *,
    ids: Ids = None,
    all_: All = False,
) -> None:
    """Delete waiting messages for good, as outbox.cancel does. The audit trail keeps the filter and the count.

    They are chosen as those of `outboxkit waiting due-now`. Safe to kill and to repeat.

    Example: outboxkit waiting cancel 019cbd26-8c00-7d3e-9c6c-2f7b1c3f4a55 --yes
    """
    _change(settings, "cancel", filters, options, ids or [], all_=all_)


def _change(
    settings: Settings,
    change: WaitingChange,
    filters: WaitingFilters,
    options: ChangeOptions,
    ids: list[str],
    *,
    all_: bool,
) -> None:
    has_filters, verb = filters != WaitingFilters(), "made due" if change == "due-now" else "cancelled"
    refuse_unclear(f"{change} which messages", ids, filters=has_filters, all_=all_)
    selection, done = filters.selection(tuple(ids)), ChangedMessages()
    plan = in_transaction(settings, "waiting", partial(plan_change, waiting=selection, change=change), only_reads=True)
    count = len(plan.positions)
    if count < len(set(ids)):
        raise ConfigurationError(
            f"{count} of {len(set(ids))} ids are of messages that wait: the others are due, have gone out, or "
            "are misspelt; `outboxkit waiting list` has those that are accepted"
        )
    typer.echo(f"{many(count, 'message')} to be {verb}" + (":" if count else ""))
    for kind in plan.kinds:
        due = in_utc(kind.first) if kind.first == kind.last else f"{in_utc(kind.first)} to {in_utc(kind.last)}"
        typer.echo(
            f"  {number(kind.count)} {printable_name(kind.type)} to {printable_name(kind.destination)}, due {due}"
        )
    question = "Make them due now?" if change == "due-now" else "Cancel them?"
    if not count or not options.is_confirmed(question, verb):
        return

    async def work(stop: asyncio.Event) -> None:
        async with connected(settings, "waiting") as engine:
            await change_waiting(engine, change, selection, plan.positions, stop, done, by=options.by)

    def say() -> None:
        typer.echo(f"{verb} {number(done.count)}")

    work_through(settings, verb, count, lambda: done.count, work, say)
    if not done.complete:
        typer.echo("stopped before the end: the same command goes on", err=True)
        sys.exit(INCOMPLETE)


app = group(
    "waiting",
    "0 done, 1 failed, 2 wrong usage or settings, 3 stopped before the end.",
    **{"list": list_waiting, "due-now": due_now, "cancel": cancel_waiting},
)
