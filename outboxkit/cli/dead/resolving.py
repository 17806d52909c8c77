"""`outboxkit dead replay` and `outboxkit dead discard`."""

import asyncio
import sys
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Annotated

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.cli.dead import show as shown
from outboxkit.cli.dead.reading import Filters, is_number, nowhere, rules, with_filters_and_operator
from outboxkit.cli.options import DATABASE, ask_first, with_settings
from outboxkit.cli.wording import many, now_and_then, number
from outboxkit.database.session_names import RELAY
from outboxkit.errors import ConfigurationError
from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Resolved, Selection, Survey
from outboxkit.runtime import compose, process
from outboxkit.runtime.settings import Settings
from outboxkit.statements import activity
from outboxkit.statements.dialects import is_server

INCOMPLETE = 3
"""Exit code: some dead letters were refused, or the command was stopped before the end."""
MOST_NAMED = 1000

Named = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")
]
All = Annotated[bool, typer.Option("--all", help="All open dead letters, without ids or filters.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="NUMBER", min=0.01, help="Messages a second, at most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only print the plan.")]
AcceptStale = Annotated[
    bool,
    typer.Option(
        "--accept-stale", help="Also messages that are too old for the inbox to tell whether they were handled."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Plan:
    """A command's plan, before it changes anything."""

    selection: Selection
    survey: Survey
    by: str
    operator: str | None
    already: tuple[str, ...]
    rules: ReplayRules


@with_settings(*DATABASE, "inbox_retention", "readers", "shutdown_timeout")
@with_filters_and_operator
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
) -> None:
    """Put dead letters back into the outbox, with the same message ids and no attempt counted.

    Those of the outbox go to their old places, and messages that waited behind them follow. Those of the inbox go
    back to their queue, and to no other. If one handler gave a message up, only this one runs again. Safe to kill and
    to repeat. Exit 3 if some were refused.

    Example: outboxkit dead replay --type OrderConfirmed --reason failed --rate 100
    """
    _refuse_nothing("replay", filters, ids, all_=all_)
    plan = asyncio.run(_plan(settings, filters, tuple(ids or ()), rules(settings, accept_stale=accept_stale)))
    _announce("replay", plan, plan.survey.replayable)
    if dry_run:
        return
    if not plan.survey.replayable:
        sys.exit(INCOMPLETE if plan.survey.count else 0)
    ask_first("Replay them?", "replayed", yes=yes)
    sys.exit(_run(settings, plan, "replay", plan.survey.replayable, rate))


@with_settings(*DATABASE, "shutdown_timeout")
@with_filters_and_operator
def discard(
    settings: Settings,
    filters: Filters,
    *,
    ids: Named = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give dead letters up for good. Messages that waited behind them go on. The rows stay, and say by whom.

    A handler whose dead letter is discarded does not run for this message any more, even if it is sent again. Safe to
    kill and to repeat.

    Example: outboxkit dead discard 7 --yes
    """
    _refuse_nothing("discard", filters, ids, all_=all_)
    plan = asyncio.run(_plan(settings, filters, tuple(ids or ()), ReplayRules()))
    _announce("discard", plan, plan.survey.count)
    if dry_run or not plan.survey.count:
        return
    ask_first("Discard them?", "discarded", yes=yes)
    sys.exit(_run(settings, plan, "discard", plan.survey.count, None))


def _refuse_nothing(what: str, filters: Filters, ids: list[str] | None, *, all_: bool) -> None:
    named = bool(ids) or not filters.says_nothing
    if named and all_:
        raise ConfigurationError(f"use either --all or {'ids' if ids else 'filters'}, not both")
    if ids and not filters.says_nothing:
        raise ConfigurationError("use either ids or filters, not both")
    if not named and not all_:
        raise ConfigurationError(
            f"{what} which dead letters? Give numbers or message ids, filters such as --type, --key, --reason or "
            "--older-than, or --all for all open ones"
        )


async def _plan(settings: Settings, filters: Filters, ids: tuple[str, ...], which: ReplayRules) -> Plan:
    engine = compose.database(settings, name="outboxkit dead")
    try:
        letters = DeadLetters(engine, rules=which, by=filters.by)
        selection = filters.selection(await letters.now(), ids)
        if named := filters.columns.message_ids:
            await _refuse_unknown(letters, named)
        already = await _already(letters, selection, ids) if ids else ()
        return Plan(selection, await letters.survey(selection), await letters.who(), filters.by, already, which)
    finally:
        await engine.dispose()


async def _refuse_unknown(letters: DeadLetters, message_ids: tuple[str, ...]) -> None:
    """Refuse message ids of `--id` that no dead letter has: they may be numbers, or mistyped."""
    rows = (await letters.find(Selection(message_ids=message_ids, resolved=True), limit=MOST_NAMED * 10)).rows
    if missing := sorted(set(message_ids) - {row.message_id for row in rows}):
        numbers = [one for one in missing if is_number(one)]
        hint = f". --id takes message ids; numbers stand without it: `{' '.join(numbers)}`" if numbers else ""
        raise ConfigurationError(nowhere(missing) + hint)


async def _already(letters: DeadLetters, selection: Selection, ids: tuple[str, ...]) -> tuple[str, ...]:
    """A line for each dead letter that is resolved already. Refuses arguments that name none at all."""
    if len(ids) > MOST_NAMED:
        raise ConfigurationError(f"{len(ids)} ids are given; up to {MOST_NAMED} are accepted, or filters")
    rows = (await letters.find(changed(selection, resolved=True), limit=MOST_NAMED * 10)).rows
    if missing := [one for one in ids if not any(one in (str(row.id), row.message_id) for row in rows)]:
        raise ConfigurationError(nowhere(missing))
    still = {row.message_id for row in rows if row.resolution is None}
    done = [row for row in reversed(rows) if row.resolution is not None]
    return tuple(
        f"dead letter {row.id} was {shown.audit(row)}"
        for row in done
        if str(row.id) in ids or row.message_id not in still
    )


def _announce(what: str, plan: Plan, count: int) -> None:
    for line in plan.already:
        typer.echo(line)
    typer.echo(f"{many(count, 'dead letter')} to {what}" + (":" if count else ""))
    for line in shown.kinds(plan.survey, replayable=what == "replay"):
        typer.echo(line)
    for line in shown.refusals(plan.survey) if what == "replay" else ():
        typer.echo(line)
    if (behind := shown.behind(plan.survey)) is not None:
        typer.echo(behind)


def _run(settings: Settings, plan: Plan, what: str, total: int, rate: float | None) -> int:
    done, needs_relay = Resolved(), False

    async def work(stop: asyncio.Event) -> int:
        nonlocal needs_relay
        engine = compose.database(settings, name="outboxkit dead")
        try:
            letters = DeadLetters(engine, rules=plan.rules, rate=rate, by=plan.operator)
            resolve = letters.replay if what == "replay" else letters.discard
            await resolve(
                plan.selection,
                stop,
                done,
                now_and_then(lambda done: f"{_past(what)} {number(done.count)} of {number(total)}"),
            )
            needs_relay = what == "replay" and bool(done.count) and await _has_no_relay(engine)
        finally:
            await engine.dispose()
        return 0

    try:
        process.run(work, shutdown_timeout=settings.shutdown_timeout)
    finally:
        released = f"; released {many(done.released, 'waiting message')}" if done.released else ""
        typer.echo(f"{_past(what)} {number(done.count)} of {number(total)} by {plan.by}{released}")
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


def _past(what: str) -> str:
    return {"replay": "replayed", "discard": "discarded"}[what]
