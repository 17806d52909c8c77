"""`outboxkit dead replay` and `outboxkit dead discard`."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Annotated

import typer

from outboxkit import process
from outboxkit.cli.dead import show as shown
from outboxkit.cli.dead.reading import nowhere
from outboxkit.cli.dead.wanted import Wanted, with_filters
from outboxkit.cli.options import DATABASE, with_settings
from outboxkit.cli.status.wording import many, number
from outboxkit.deadletters import DeadLetters, Resolved, Selection, Survey
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
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", min=0.01, help="Messages a second, at most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command is about to do."""

    selection: Selection
    survey: Survey
    by: str
    already: tuple[str, ...]


@with_settings(*DATABASE, "shutdown_timeout")
@with_filters
def replay(
    chosen: Settings,
    wanted: Wanted,
    *,
    given: Named = None,
    all_: All = False,
    rate: Rate = None,
    dry_run: DryRun = False,
) -> None:
    """Put dead letters of the outbox back into it: same message ids, in their old places, due at once.

    Messages that waited behind them follow. Safe to kill and to repeat. Exit 3 where some could not be put back.

    Example: outboxkit dead replay --type OrderConfirmed --reason unroutable --rate 100
    """
    _refuse_nothing("replay", wanted, given, all_=all_)
    if wanted.side == "inbox":
        raise ConfigurationError(f"--side is 'inbox': {_ONLY_OUTBOX}")
    plan = asyncio.run(_plan(chosen, wanted, tuple(given or ())))
    inbox = [kind for kind in plan.survey.kinds if kind[0] != "outbox"]
    if inbox and (given or wanted.message_ids):
        count = many(sum(kind[3] for kind in inbox), "of them is", "of them are")
        raise ConfigurationError(f"{count} of the inbox: {_ONLY_OUTBOX}; nothing was replayed")
    _announce("replay", plan, plan.survey.replayable)
    left = plan.survey.count - plan.survey.replayable
    if left:
        typer.echo(f"left alone: {many(left, 'dead letter')} of the inbox, which cannot be replayed yet")
    if dry_run or not plan.survey.replayable:
        return
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

    Safe to kill and to repeat.

    Example: outboxkit dead discard 7 --yes
    """
    _refuse_nothing("discard", wanted, given, all_=all_)
    plan = asyncio.run(_plan(chosen, wanted, tuple(given or ())))
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


_ONLY_OUTBOX = (
    "replay accepts dead letters of the outbox (--side outbox); those of the inbox can be listed, shown and discarded"
)


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


async def _plan(chosen: Settings, wanted: Wanted, given: tuple[str, ...]) -> Plan:
    engine = process.engine(chosen.database_url.get_secret_value(), name="outboxkit dead")
    try:
        letters = DeadLetters(engine)
        selection = wanted.selection(await letters.now(), given)
        already = await _already(letters, selection, given) if given else ()
        return Plan(selection, await letters.survey(selection), await letters.who(), already)
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
    for line in shown.kinds(plan.survey, outbox_only=what == "replay"):
        typer.echo(line)
    if (behind := shown.behind(plan.survey)) is not None:
        typer.echo(behind)


def _run(chosen: Settings, plan: Plan, what: str, total: int, rate: float | None) -> int:
    done = Resolved()

    async def work(stop: asyncio.Event) -> int:
        engine = process.engine(chosen.database_url.get_secret_value(), name="outboxkit dead")
        try:
            letters = DeadLetters(engine, rate=rate)
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
    if done.refused_count:
        _say_refused(done)
        return INCOMPLETE
    if not done.complete:
        typer.echo("stopped before the end: the same command goes on", err=True)
        return INCOMPLETE
    return 0


def _say_refused(done: Resolved) -> None:
    names = ", ".join(map(str, done.refused)) + (" …" if done.refused_count > len(done.refused) else "")
    typer.echo(
        f"outboxkit: not replayed: {names}: their places in the outbox are taken; the same message may wait there "
        "already (compare `outboxkit dead show`), then discard them",
        err=True,
    )


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
