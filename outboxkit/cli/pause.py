"""`outboxkit pause` and `outboxkit resume`: hold a relay or the consumers of a queue, and let them go on."""

import asyncio
from typing import Annotated

import typer
from sqlalchemy import Connection

from outboxkit import statements
from outboxkit.cli.connections import connected, in_transaction
from outboxkit.cli.options import By, duration, with_options
from outboxkit.errors.figures import printable_name
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.holding import Holding, read_holding
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.runtime import pauses, workers
from outboxkit.runtime.pauses.watch import PAUSE_POLL_SECONDS
from outboxkit.runtime.settings import Settings

LOOKS = 8
"""Looks whether all processes hold, `PAUSE_POLL_SECONDS` apart."""
FEW = {"limit": 100, "most": 20}
"""The parked dead letters and the destinations among which a name is looked for, at most."""

What = Annotated[
    str, typer.Argument(metavar="relay|QUEUE", help="The relay, or a queue's name; queue:relay is a queue named relay.")
]
For = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="The pause ends by itself after this time, such as 10m.")
]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for people who find the pause.")]


@with_options("destination")
def pause(settings: Settings, what: What, *, why: Why, for_: For = None, by: By = None) -> None:
    """Hold the relays of a destination, or the consumers of a queue. They see it within a second, and keep running.

    They finish what is in hand and begin nothing new. Started again, they are still paused. Nothing is lost, no attempt
    is counted. Paused again, a pause gets the new time and reason.

    Example: outboxkit pause billing --for 10m --why "the bank is being moved"
    """
    ours, lasts = _what(what, settings), None if for_ is None else duration("--for", for_)

    def begin(connection: Connection) -> tuple[pauses.Pause, list[str]]:
        begun = pause_process(connection, *ours, why=why, by=by, lasts=lasts)
        if begun.process == workers.RELAY:
            known = connection.execute(statements.status.destinations(), FEW).scalars().all()
        else:
            known = connection.execute(statements.handlers.of_all_queues()).scalars().all()
        return begun, list(known)

    begun, known = in_transaction(settings, "pause", begin, only_reads=False)
    typer.echo(str(begun))
    if (holding := asyncio.run(_wait_for_holders(settings, begun))) is not None:
        typer.echo(str(holding))
    if begun.name not in (*known, DEFAULT_DESTINATION if begun.process == workers.RELAY else None):
        typer.echo(f"outboxkit: {printable_name(_doubt(begun, sorted(known)))}", err=True)


@with_options("destination")
def resume(settings: Settings, what: What, *, by: By = None) -> None:
    """Let the relays of a destination, or the consumers of a queue, go on after `outboxkit pause`.

    Example: outboxkit resume billing
    """
    process, name = _what(what, settings)

    def end(connection: Connection) -> pauses.Pause | None:
        return resume_process(connection, process, name, by=by)

    ended = in_transaction(settings, "resume", end, only_reads=False)
    if ended is None:
        typer.echo(f"{printable_name(pauses.what_of(process, name))} was not paused")
    else:
        typer.echo(f"{printable_name(ended.what)} goes on; it was paused {ended.terms}")


def _doubt(begun: pauses.Pause, known: list[str]) -> str:
    """The sentence that the name may be a typo."""
    if begun.process == workers.RELAY:
        names = f"messages to {', '.join(known)} do" if known else "nothing does"
        return f"no message to destination {begun.name} waits in this database, {names}: is the name right?"
    names = f"those of {', '.join(known)} were: is the name right?" if known else "nor of any other"
    return f"no consumer of {begun.what} was seen on this database, {names}"


def _what(what: str, settings: Settings) -> tuple[str, str]:
    if what == workers.RELAY:
        return workers.RELAY, settings.destination
    return workers.CONSUMER, what.removeprefix("queue:")


async def _wait_for_holders(settings: Settings, pause: pauses.Pause) -> Holding | None:
    """The processes that hold, after the time in which they see the pause; None on a file."""
    async with connected(settings, "pause") as engine:
        for left in reversed(range(LOOKS)):
            async with engine.connect() as connection:
                holding = await connection.run_sync(read_holding, (pause,))
            if not holding or not holding[0].others or not left:
                break
            await asyncio.sleep(PAUSE_POLL_SECONDS)
    return holding[0] if holding else None
