"""`outboxkit dead`: list dead letters, show one, put them back into the outbox, or discard them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace as changed
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from sqlalchemy import Row

from outboxkit.cli.commands import group
from outboxkit.cli.confirming import ChangeOptions, refuse_unclear, work_through
from outboxkit.cli.connections import connected
from outboxkit.cli.dead import shown
from outboxkit.cli.dead.selecting import Filters, refuse_missing, with_ids
from outboxkit.cli.options import AsJson, Limit, Rate, with_options
from outboxkit.cli.wording import print_json, print_table
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import many, number, printable_name
from outboxkit.exit_codes import INCOMPLETE
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Resolved, Selection, Survey, rules_of
from outboxkit.operators.sql.resolve import Resolution
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.workers import relay_command
from outboxkit.statements.dead import GROUP_COLUMNS

T = TypeVar("T")
MOST_SHOWN, MOST_NAMED = 100, 1000

ARGUMENT = typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")
Named = Annotated[list[str], ARGUMENT]
Some = Annotated[list[str] | None, ARGUMENT]
AlsoResolved = Annotated[bool, typer.Option("--all", help="Also replayed and discarded ones.")]
All = Annotated[bool, typer.Option("--all", help="All open dead letters, without ids or filters.")]
GroupBy = Annotated[
    str | None,
    typer.Option("--group-by", metavar="|".join(GROUP_COLUMNS), help="Count them by this, the largest groups first."),
]
AcceptStale = Annotated[
    bool,
    typer.Option(
        "--accept-stale", help="Also messages that are too old for the inbox to tell whether they were handled."
    ),
]


def _ask(
    settings: Settings, work: Callable[[DeadLetters, datetime], Awaitable[T]], rules: ReplayRules | None = None
) -> T:
    """The result of `work`, which gets the dead letters and the database's time."""

    async def run() -> T:
        async with connected(settings, "dead", only_reads=True) as engine:
            letters = DeadLetters(engine, rules=rules)
            return await work(letters, await letters.now())

    return asyncio.run(run())


@with_options()
def list_(
    settings: Settings,
    filters: Filters,
    *,
    limit: Limit = 50,
    all_: AlsoResolved = False,
    group_by: GroupBy = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first: those that are neither replayed nor discarded. Or count them in groups.

    Example: outboxkit dead list --group-by error --since 1d
    """
    if group_by is not None:
        _list_groups(settings, filters, group_by, limit=limit, resolved=all_, as_json=as_json)
        return
    page = _ask(settings, lambda letters, now: letters.find(filters.selection(now, resolved=all_), limit=limit))
    judge = rules_of(settings)
    rows = [(row, judge.refusal(row, page.now)) for row in page.rows]
    if as_json:
        print_json(
            {
                "dead_letters": [shown.listed(row, why) for row, why in rows],
                "more": page.more.value,
                "at_least": page.more.at_least,
            }
        )
    elif not rows:
        nothing = "no dead letter" if all_ else "no open dead letter"
        typer.echo(nothing if filters.is_empty else f"{nothing} matches")
    else:
        print_table(shown.COLUMNS, (shown.cells(row, why, page.now) for row, why in rows))
        for line in shown.legend(rows):
            typer.echo(line)
        if page.more.value:
            typer.echo(f"and {number(page.more)} more: --limit shows more of them, filters fewer")


def _list_groups(
    settings: Settings, filters: Filters, column: str, *, limit: int, resolved: bool, as_json: bool
) -> None:
    if column not in GROUP_COLUMNS:
        raise ConfigurationError(f"--group-by is {column[:60]!r}: {', '.join(GROUP_COLUMNS)} are accepted")
    rows = _ask(
        settings,
        lambda letters, now: letters.group(filters.selection(now, resolved=resolved), column, limit=limit),
    ).rows
    if as_json:
        print_json([dict(row._mapping) for row in rows])  # noqa: SLF001 - its public view
    elif not rows:
        typer.echo("no open dead letter" if filters.is_empty and not resolved else "no dead letter matches")
    else:
        columns = {"count": "number", "first": "whole", "last": "whole", "example": "number", column: "folded"}
        print_table(columns, map(shown.group_cells, rows))


@with_options()
def show(settings: Settings, ids: Named, *, as_json: AsJson = False) -> None:
    """Show all of a dead letter, open or not: its reason, times, headers, payload, and who resolved it.

    A message id may have several. Exit 2 if there is none.

    Example: outboxkit dead show 7
    """

    async def read(letters: DeadLetters, now: datetime) -> tuple[datetime, Sequence[Row[Any]]]:
        return now, await letters.read(with_ids(Selection(resolved=True), ids), limit=MOST_SHOWN)

    (now, rows), judge = _ask(settings, read), rules_of(settings)
    if as_json:
        print_json([shown.detailed(row, judge.refusal(row, now)) for row in rows])
    else:
        for index, row in enumerate(rows):
            typer.echo(("\n" if index else "") + "\n".join(shown.one(row, judge.refusal(row, now), now)))
    refuse_missing(ids, rows)
    if len(rows) == MOST_SHOWN:
        typer.echo(f"the first {MOST_SHOWN} are shown", err=True)


@with_options(unlisted="filters")
def replay(
    settings: Settings,
    filters: Filters,
    options: ChangeOptions,
    *,
    ids: Some = None,
    all_: All = False,
    accept_stale: AcceptStale = False,
    rate: Rate = None,
) -> None:
    """Put dead letters back into the outbox, with the same message ids and no attempt counted.

    They are chosen by ids, by the filters of `outboxkit dead list`, or by --all.
    Those of the outbox go to their old places, and messages that waited behind them follow. Those of the inbox go
    back to their queue, and to no other. If one handler gave a message up, only this one runs again. Safe to kill and
    to repeat. Exit 3 if some were refused.

    Example: outboxkit dead replay --type OrderConfirmed --reason failed --rate 100
    """
    rules = rules_of(settings, accept_stale=accept_stale)
    selection, survey = _plan(settings, "replay", filters, ids or [], rules, all_=all_)
    if not survey.replayable:
        sys.exit(INCOMPLETE if survey.count and not options.dry_run else 0)
    if options.is_confirmed("Replay them?", "replayed"):
        sys.exit(_run(settings, "replayed", selection, survey, rules, rate, options.by))


@with_options(unlisted="filters")
def discard(
    settings: Settings,
    filters: Filters,
    options: ChangeOptions,
    *,
    ids: Some = None,
    all_: All = False,
) -> None:
    """Give dead letters up for good. Messages that waited behind them go on. The rows stay, and say by whom.

    They are chosen by ids, by the filters of `outboxkit dead list`, or by --all.
    A handler whose dead letter is discarded does not run for this message any more, even if it is sent again. Safe to
    kill and to repeat.

    Example: outboxkit dead discard 7 --yes
    """
    selection, survey = _plan(settings, "discard", filters, ids or [], None, all_=all_)
    if survey.count and options.is_confirmed("Discard them?", "discarded"):
        sys.exit(_run(settings, "discarded", selection, survey, None, None, options.by))


def _plan(
    settings: Settings, what: str, filters: Filters, ids: list[str], rules: ReplayRules | None, *, all_: bool
) -> tuple[Selection, Survey]:
    """The dead letters that are to be resolved; prints what will be done with them."""
    refuse_unclear(f"{what} which dead letters", ids, filters=not filters.is_empty, all_=all_)
    if len(ids) > MOST_NAMED:
        raise ConfigurationError(f"{len(ids)} ids are given; up to {MOST_NAMED} are accepted, or filters")

    async def count(letters: DeadLetters, now: datetime) -> tuple[Selection, Survey, Sequence[Row[Any]]]:
        """The selection, its counts, and the rows of the ids, open or not."""
        selection = with_ids(filters.selection(now), ids)
        every = changed(selection, resolved=True)
        rows = (await letters.find(every, limit=MOST_NAMED * 10)).rows if ids else ()
        return selection, await letters.survey(selection, judged=0 if rules is None else None), rows

    selection, survey, rows = _ask(settings, count, rules)
    refuse_missing(ids, rows)
    for line in _lines(what, survey, ids, rows):
        typer.echo(line)
    return selection, survey


def _lines(what: str, survey: Survey, ids: Sequence[str], rows: Sequence[Row[Any]]) -> Iterator[str]:
    still = {row.message_id for row in rows if row.resolution is None}
    for row in reversed(rows):
        if row.resolution is not None and (str(row.id) in ids or row.message_id not in still):
            yield f"dead letter {row.id} was {shown.audit(row)}"
    is_replay = what == "replay"
    count = survey.replayable if is_replay else survey.count
    yield f"{many(count, 'dead letter')} to {what}" + (":" if count else "")
    yield from shown.kinds(survey, replayable=is_replay)
    if is_replay:
        yield from shown.refusals(survey)
    if survey.keys:
        yield f"parked by them: {many(survey.keys, 'key')}, with {many(survey.waiting, 'waiting message')}"


def _run(
    settings: Settings,
    as_: Resolution,
    selection: Selection,
    survey: Survey,
    rules: ReplayRules | None,
    rate: float | None,
    by: str | None,
) -> int:
    """Resolve the dead letters that were surveyed, and print what was done; returns the exit code."""
    done, alone = Resolved(), list[str]()
    total = survey.replayable if as_ == "replayed" else survey.count

    async def work(stop: asyncio.Event) -> None:
        async with connected(settings, "dead") as engine:
            letters = DeadLetters(engine, rules=rules, rate=rate, by=by)
            await letters.resolve(as_, selection, stop, done, upto=survey.upto)
            alone.extend(await letters.without_relay(done.destinations))

    def say() -> None:
        by_whom = f" by {done.by}" if done.by else ""
        released = f"; released {many(done.released, 'waiting message')}" if done.released else ""
        typer.echo(f"{as_} {number(done.count)} of {number(total)}{by_whom}{released}")

    work_through(settings, as_, total, lambda: done.count, work, say)
    for why, count in done.refused.items():
        typer.echo(f"outboxkit: not replayed: {number(count)}, {why}: {why.plain}", err=True)
    for destination in alone:
        of = "" if destination == DEFAULT_DESTINATION else f" of {printable_name(destination)}"
        command = relay_command(destination)
        typer.echo(f"outboxkit: no relay{of} is connected to this database: `{command}` sends them", err=True)
    if not done.complete:
        typer.echo("stopped before the end: the same command goes on", err=True)
    return 0 if done.complete and not done.refused else INCOMPLETE


app = group(
    "dead",
    "0 done, 1 failed, 2 wrong usage or settings, 3 part of it could not be done.",
    list=list_,
    show=show,
    replay=replay,
    discard=discard,
)
