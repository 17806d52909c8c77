"""`outboxkit dead replay` and `outboxkit dead discard`."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Annotated

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.cli.connections import connected
from outboxkit.cli.dead import show as shown
from outboxkit.cli.dead.reading import Filters, is_number, named, refuse_missing, rules
from outboxkit.cli.options import By, DryRun, Rate, Yes, ask_first, with_options
from outboxkit.cli.wording import progress
from outboxkit.database.session_names import RELAY
from outboxkit.errors import ConfigurationError
from outboxkit.errors.wording import many, number
from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Resolved, Selection, Survey
from outboxkit.runtime import process
from outboxkit.runtime.settings import Settings
from outboxkit.statements import activity
from outboxkit.statements.dialects import is_server

INCOMPLETE = 3
"""Exit code: some dead letters were refused, or the command was stopped before the end."""
MOST_NAMED = 1000
DONE = {"replay": "replayed", "discard": "discarded"}

Named = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")
]
All = Annotated[bool, typer.Option("--all", help="All open dead letters, without ids or filters.")]
AcceptStale = Annotated[
    bool,
    typer.Option(
        "--accept-stale", help="Also messages that are too old for the inbox to tell whether they were handled."
    ),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """A command's plan, before it changes anything.

    Attributes:
        what: `replay` or `discard`.
        selection, survey: the dead letters, and their counts.
        count: the number of those that it is to resolve.
        by: the operator, as it is recorded.
        already: a line for each that is resolved already.
    """

    what: str
    selection: Selection
    survey: Survey
    count: int
    by: str
    already: Sequence[str]


@with_options("database_url")
def replay(
    settings: Settings,
    filters: Filters,
    *,
    ids: Named = None,
    all_: All = False,
    accept_stale: AcceptStale = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
) -> None:
    """Put dead letters back into the outbox, with the same message ids and no attempt counted.

    Those of the outbox go to their old places, and messages that waited behind them follow. Those of the inbox go
    back to their queue, and to no other. If one handler gave a message up, only this one runs again. Safe to kill and
    to repeat. Exit 3 if some were refused.

    Example: outboxkit dead replay --type OrderConfirmed --reason failed --rate 100
    """
    _refuse_nothing("replay", filters, ids, all_=all_)
    which = rules(settings, accept_stale=accept_stale)
    plan = asyncio.run(_plan(settings, "replay", filters, ids or [], which, by))
    _announce(plan)
    if dry_run:
        return
    if not plan.count:
        sys.exit(INCOMPLETE if plan.survey.count else 0)
    ask_first("Replay them?", "replayed", yes=yes)
    sys.exit(_run(settings, plan, which, rate, by))


@with_options("database_url")
def discard(
    settings: Settings,
    filters: Filters,
    *,
    ids: Named = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
) -> None:
    """Give dead letters up for good. Messages that waited behind them go on. The rows stay, and say by whom.

    A handler whose dead letter is discarded does not run for this message any more, even if it is sent again. Safe to
    kill and to repeat.

    Example: outboxkit dead discard 7 --yes
    """
    _refuse_nothing("discard", filters, ids, all_=all_)
    plan = asyncio.run(_plan(settings, "discard", filters, ids or [], ReplayRules(), by))
    _announce(plan)
    if dry_run or not plan.count:
        return
    ask_first("Discard them?", "discarded", yes=yes)
    sys.exit(_run(settings, plan, ReplayRules(), None, by))


def _refuse_nothing(what: str, filters: Filters, ids: list[str] | None, *, all_: bool) -> None:
    if all_ and (ids or not filters.is_empty):
        raise ConfigurationError(f"use either --all or {'ids' if ids else 'filters'}, not both")
    if ids and not filters.is_empty:
        raise ConfigurationError("use either ids or filters, not both")
    if filters.is_empty and not ids and not all_:
        raise ConfigurationError(
            f"{what} which dead letters? Give numbers or message ids, filters such as --type, --key, --reason or "
            "--older-than, or --all for all open ones"
        )
    if ids and len(ids) > MOST_NAMED:
        raise ConfigurationError(f"{len(ids)} ids are given; up to {MOST_NAMED} are accepted, or filters")


async def _plan(
    settings: Settings, what: str, filters: Filters, ids: Sequence[str], which: ReplayRules, by: str | None
) -> Plan:
    async with connected(settings, "dead") as engine:
        letters = DeadLetters(engine, rules=which, by=by)
        selection = named(filters.selection(await letters.now()), ids)
        already = await _already(letters, selection, ids, by_filter=filters.id_ or ())
        survey = await letters.survey(selection)
        count = survey.replayable if what == "replay" else survey.count
        return Plan(what, selection, survey, count, await letters.who(), already)


async def _already(
    letters: DeadLetters, selection: Selection, ids: Sequence[str], *, by_filter: Sequence[str]
) -> Sequence[str]:
    """A line for each dead letter that is resolved already. Refuses ids that name none at all."""
    if not ids and not by_filter:
        return ()
    rows = (await letters.find(changed(selection, resolved=True), limit=MOST_NAMED * 10)).rows
    if any(is_number(one) for one in by_filter if one not in {row.message_id for row in rows}):
        raise ConfigurationError("--id takes message ids; the number of a dead letter stands without it")
    refuse_missing([*ids, *by_filter], rows)
    still = {row.message_id for row in rows if row.resolution is None}
    return [
        f"dead letter {row.id} was {shown.audit(row)}"
        for row in reversed(rows)
        if row.resolution is not None and (str(row.id) in ids or row.message_id not in still)
    ]


def _announce(plan: Plan) -> None:
    is_replay = plan.what == "replay"
    lines = [
        *plan.already,
        f"{many(plan.count, 'dead letter')} to {plan.what}" + (":" if plan.count else ""),
        *shown.kinds(plan.survey, replayable=is_replay),
        *(shown.refusals(plan.survey) if is_replay else ()),
        *shown.behind(plan.survey),
    ]
    for line in lines:
        typer.echo(line)


def _run(settings: Settings, plan: Plan, which: ReplayRules, rate: float | None, by: str | None) -> int:
    done, needs_relay, verb = Resolved(), False, DONE[plan.what]

    async def work(stop: asyncio.Event) -> int:
        nonlocal needs_relay
        with progress(verb, plan.count) as show:
            async with connected(settings, "dead") as engine:
                letters = DeadLetters(engine, rules=which, rate=rate, by=by)
                resolve = letters.replay if plan.what == "replay" else letters.discard
                await resolve(plan.selection, stop, done, lambda done: show(done.count, ""))
                needs_relay = plan.what == "replay" and bool(done.count) and await _has_no_relay(engine)
        return 0

    try:
        process.run(work, shutdown_timeout=settings.shutdown_timeout)
    finally:
        released = f"; released {many(done.released, 'waiting message')}" if done.released else ""
        typer.echo(f"{verb} {number(done.count)} of {number(plan.count)} by {plan.by}{released}")
    _say_refused(done, plan.survey)
    if needs_relay:
        typer.echo("no relay is connected to this database: start one, `outboxkit relay`")
    if not done.complete:
        typer.echo("stopped before the end: the same command goes on", err=True)
    return 0 if done.complete and not done.refused else INCOMPLETE


async def _has_no_relay(engine: AsyncEngine) -> bool:
    """Whether the server has no session of a relay; of a file nobody knows."""
    if not is_server(engine.dialect.name):
        return False
    async with engine.connect() as connection:
        names = [row.name for row in await connection.execute(activity.sessions())]
    return not any(name.startswith(RELAY) for name in names)


def _say_refused(done: Resolved, survey: Survey) -> None:
    """Name the refused ones. The reason stands at length only if it was not printed at the beginning."""
    for why, count in done.refused.items():
        names = ", ".join(map(str, done.named[why])) + (" …" if count > len(done.named[why]) else "")
        reason = why if survey.refusals[why] else f"{why}: {why.plain}"
        typer.echo(f"outboxkit: not replayed: {names} ({reason})", err=True)
