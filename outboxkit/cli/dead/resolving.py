"""`outboxkit dead replay` and `outboxkit dead discard`."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Annotated

import typer

from outboxkit import compose, process
from outboxkit.cli.dead import show as shown
from outboxkit.cli.dead.reading import MEMORY, Wanted, nowhere, rules, with_filters
from outboxkit.cli.options import DATABASE, with_settings
from outboxkit.cli.wording import many, number
from outboxkit.deadletters import DeadLetters, Resolved, Rules, Selection, Survey
from outboxkit.errors import ConfigurationError
from outboxkit.settings import Settings

INCOMPLETE = 3
"""Exit code: some of it could not be done, or it was stopped before the end."""
SAY_EVERY = 10_000
MOST_NAMED = 1000

Named = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Numbers of dead letters (digits), or message ids.")
]
All = Annotated[bool, typer.Option("--all", help="All that are open, where nothing else says which.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="NUMBER", min=0.01, help="Messages a second, at most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
AcceptStale = Annotated[
    bool, typer.Option("--accept-stale", help="Also what is too old for the inbox to tell whether it was handled.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command is about to do."""

    selection: Selection
    survey: Survey
    by: str
    already: tuple[str, ...]
    rules: Rules


@with_settings(*DATABASE, *MEMORY, "shutdown_timeout")
@with_filters
def replay(
    chosen: Settings,
    wanted: Wanted,
    *,
    given: Named = None,
    all_: All = False,
    accept_stale: AcceptStale = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Put dead letters back into the outbox, with the same message ids and no attempt counted.

    Those of the outbox go to their old places, and what waited behind them follows. Those of the inbox go to the queue
    that they came from, and to no other; where one handler gave a message up, only this one runs again. It asks first
    on a terminal. Safe to kill and to repeat. Exit 3 where some were refused.

    Example: outboxkit dead replay --type OrderConfirmed --reason failed --rate 100
    """
    _refuse_nothing("replay", wanted, given, all_=all_)
    plan = asyncio.run(_plan(chosen, wanted, tuple(given or ()), rules(chosen, accept_stale=accept_stale)))
    _announce("replay", plan, plan.survey.replayable)
    if dry_run:
        return
    if not plan.survey.replayable:
        sys.exit(INCOMPLETE if plan.survey.count else 0)
    if not yes and sys.stdin.isatty():
        typer.confirm("Replay them?", abort=True)
    sys.exit(_run(chosen, plan, "replay", plan.survey.replayable, rate))


@with_settings(*DATABASE, "shutdown_timeout")
@with_filters
def discard(
    chosen: Settings,
    wanted: Wanted,
    *,
    given: Named = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give dead letters up for good. Messages that waited behind them go on. The rows stay, and say by whom.

    A handler whose dead letter is discarded does not run for this message any more, whoever sends it again. Safe to
    kill and to repeat.

    Example: outboxkit dead discard 7 --yes
    """
    _refuse_nothing("discard", wanted, given, all_=all_)
    plan = asyncio.run(_plan(chosen, wanted, tuple(given or ()), Rules()))
    _announce("discard", plan, plan.survey.count)
    if dry_run or not plan.survey.count:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError(
                "nobody is there to be asked, and nothing was discarded: add --yes to discard them"
            )
        typer.confirm("Discard them?", abort=True)
    sys.exit(_run(chosen, plan, "discard", plan.survey.count, None))


def _refuse_nothing(what: str, wanted: Wanted, given: list[str] | None, *, all_: bool) -> None:
    named = bool(given) or not wanted.says_nothing
    if named and all_:
        raise ConfigurationError(f"--all stands beside {'ids' if given else 'filters'}: one of them is accepted")
    if given and not wanted.says_nothing:
        raise ConfigurationError("ids stand beside filters: one of them is accepted")
    if not named and not all_:
        raise ConfigurationError(
            f"{what} which? Neither ids, filters nor --all are given: numbers or message ids, filters such as "
            "--type, --key, --reason or --older-than, or --all for all that are open are accepted"
        )


async def _plan(chosen: Settings, wanted: Wanted, given: tuple[str, ...], which: Rules) -> Plan:
    engine = compose.database(chosen, name="outboxkit dead")
    try:
        letters = DeadLetters(engine, rules=which)
        selection = wanted.selection(await letters.now(), given)
        already = await _already(letters, selection, given) if given else ()
        return Plan(selection, await letters.survey(selection), await letters.who(), already, which)
    finally:
        await engine.dispose()


async def _already(letters: DeadLetters, selection: Selection, given: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of those that are resolved; refuses arguments that name none at all."""
    if len(given) > MOST_NAMED:
        raise ConfigurationError(f"{len(given)} ids are given; up to {MOST_NAMED} are accepted, or filters")
    rows = (await letters.find(changed(selection, resolved=True), limit=MOST_NAMED * 10)).rows
    if missing := [one for one in given if not any(one in (str(row.id), row.message_id) for row in rows)]:
        raise ConfigurationError(nowhere(missing))
    still = {row.message_id for row in rows if row.resolution is None}
    done = [row for row in reversed(rows) if row.resolution is not None]
    return tuple(
        f"dead letter {row.id} was {shown.audit(row)}"
        for row in done
        if str(row.id) in given or row.message_id not in still
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


def _run(chosen: Settings, plan: Plan, what: str, total: int, rate: float | None) -> int:
    done = Resolved()

    async def work(stop: asyncio.Event) -> int:
        engine = compose.database(chosen, name="outboxkit dead")
        try:
            letters = DeadLetters(engine, rules=plan.rules, rate=rate)
            resolve = letters.replay if what == "replay" else letters.discard
            await resolve(plan.selection, stop, done, _say_now_and_then(what, total))
        finally:
            await engine.dispose()
        return 0

    try:
        process.run(work, shutdown_timeout=chosen.shutdown_timeout)
    finally:
        released = f"; released {many(done.released, 'waiting message')}" if done.released else ""
        typer.echo(f"{_past(what)} {number(done.count)} of {number(total)} by {plan.by}{released}")
    _say_refused(done, plan.survey)
    if not done.complete:
        typer.echo("stopped before the end: the same command goes on", err=True)
    return 0 if done.complete and not done.refused else INCOMPLETE


def _say_refused(done: Resolved, survey: Survey) -> None:
    """Name them; the reason at length only where it was not said at the beginning."""
    for why, count in done.refused.items():
        names = ", ".join(map(str, done.named[why])) + (" …" if count > len(done.named[why]) else "")
        reason = why if survey.refusals[why] else f"{why}: {why.plain}"
        typer.echo(f"outboxkit: not replayed: {names} ({reason})", err=True)


def _past(what: str) -> str:
    return {"replay": "replayed", "discard": "discarded"}[what]


def _say_now_and_then(what: str, total: int) -> Callable[[Resolved], None]:
    said = 0

    def say(done: Resolved) -> None:
        nonlocal said
        if done.count >= said + SAY_EVERY:
            said = done.count
            typer.echo(f"{_past(what)} {number(done.count)} of {number(total)}", err=True)

    return say
