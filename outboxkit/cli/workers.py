"""`outboxkit relay` and `outboxkit consume`: the two workers."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, NoReturn

import typer

from outboxkit.cli.options import with_options
from outboxkit.cli.progress import progress
from outboxkit.consumer import Consumer, Consumers, ShardedConsumer
from outboxkit.consumer.reports import Consumed
from outboxkit.database import silence
from outboxkit.exit_codes import INCOMPLETE
from outboxkit.inbox import Handler, Wiring
from outboxkit.relay import Drained, Relay
from outboxkit.runtime import admin, compose, process, queues, supervisor
from outboxkit.runtime.settings import Settings

STOPPED = "stopped before the end"

Modules = Annotated[list[str], typer.Argument(metavar="MODULE", help="Modules with handlers, e.g. shop.handlers.")]
Drain = Annotated[bool, typer.Option("--drain", help="Do what is due, then exit.")]
Processes = Annotated[
    int, typer.Option("--processes", metavar="NUMBER", min=1, max=64, help="Do the work in so many processes.")
]


def distribute(settings: Settings, processes: int, *, drain: bool) -> None:
    """Have the work done in so many processes, and exit at their end; return if this one is to do it itself."""
    if (code := supervisor.supervise(settings, processes, drain=drain)) is not None:
        sys.exit(code)


def run_service(
    settings: Settings, service: Callable[[asyncio.Event], Awaitable[int]], *, drain: bool = False
) -> NoReturn:
    """Run a service until it ends or is stopped, and exit with its code. A drain that is stopped is incomplete."""
    cancelled = INCOMPLETE if drain else 0
    sys.exit(process.leave(process.run(service, shutdown_timeout=settings.shutdown_timeout, cancelled=cancelled)))


@with_options("database_url", "broker_url", "destination", "admin_port", logs=True)
def relay(settings: Settings, *, drain: Drain = False, processes: Processes = 1) -> None:
    """Publish the messages that committed transactions added for a destination. Run as many as you like.

    Example: outboxkit relay
    """
    distribute(settings, processes, drain=drain)
    run_service(settings, lambda stop: _relay(settings, stop, drain=drain), drain=drain)


async def _relay(settings: Settings, stop: asyncio.Event, *, drain: bool) -> int:
    silence.announce(None)  # its log has outages
    async with compose.relay(settings) as worker:
        if not drain:
            async with admin.serving(settings, worker):
                await worker.run(stop)
            return 0
        done = await drain_relay(worker, stop, patience=settings.publish_timeout)
    return show_drained(done)


async def drain_relay(relay: Relay, stop: asyncio.Event, *, patience: timedelta) -> Drained:
    """Drain a relay, and show its progress."""
    with _shown("published", lambda: relay.published):
        return await relay.drain(stop, patience=patience)


@contextmanager
def _shown(verb: str, count: Callable[[], int]) -> Iterator[None]:
    """Show the progress of a drain; one that is cancelled ends with its count."""
    try:
        with progress(verb, count):
            yield
    except asyncio.CancelledError:
        typer.echo(f"{verb} {count()}, {STOPPED}", err=True)
        raise


def show_drained(done: Drained) -> int:
    """Print what a relay's drain has done. Returns the exit code."""
    typer.echo(_summary(done), err=not done.is_complete)
    return 0 if done.is_complete else INCOMPLETE


def _waits(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _summary(done: Drained) -> str:
    lines = [f"published {done.published}"]
    if done.paused is not None:
        lines.append(str(done.paused))
    if done.later:
        lines.append(f"{done.later} {_waits(done.later)} for a later time")
    if done.away is not None:
        lines.append(f"stopped while {done.away}")
    elif done.stopped and done.blocked:
        lines.append(STOPPED)
    if done.blocked:
        held = done.paused is None and done.away is None and not done.stopped
        why = ": another session, usually a relay, has them locked; the log says more" if held else ""
        lines.append(f"{done.blocked} due, but not published{why}")
    elif done.blocked is None:
        lines.append("what is left could not be counted: the database was away")
    if done.expired:
        lines.append(f"expired {done.expired}, set aside as dead letters")
    if done.discarded:
        lines.append(f"discarded {done.discarded} that no queue wanted")
    lines += [f"{count} {kind} set aside as dead letters: {reason}" for kind, (count, reason) in done.dead.items()]
    lines += [f"{count} {kind} will be tried again: {reason}" for kind, (count, reason) in done.failed.items()]
    return "\n".join(lines)


@with_options(
    *("queue", "bind", "declare", "database_url", "broker_url", "readers", "ignore", "concurrency"),
    *("ordered", "shards", "admin_port"),
    logs=True,
)
def consume(settings: Settings, modules: Modules, *, drain: Drain = False, processes: Processes = 1) -> None:
    """Receive messages and run their handlers, each effect once.

    Example: outboxkit consume shop.handlers --queue billing --queue mails:2
    """
    queues.consumed_queues(settings)
    distribute(settings, processes, drain=drain)
    handlers, wiring = compose.load_handlers(modules), compose.load_wiring(modules)
    run_service(settings, lambda stop: _consume(settings, handlers, wiring, stop, drain=drain), drain=drain)


async def _consume(
    settings: Settings, handlers: list[Handler], wiring: Wiring, stop: asyncio.Event, *, drain: bool
) -> int:
    silence.announce(None)  # its log has outages
    async with compose.consumer(settings, handlers, wiring=wiring, drain=drain) as worker:
        if not drain:
            async with admin.serving(settings, worker):
                await worker.run(stop)
            return 0
        done = await drain_consumer(worker, stop)
    return show_consumed(done)


async def drain_consumer(consumer: Consumer | Consumers | ShardedConsumer, stop: asyncio.Event) -> Consumed:
    """Drain a consumer, and show its progress."""
    with _shown("handled", lambda: consumer.outcomes.total()):  # noqa: PLW0108 - of several queues it is a sum as of now
        return await consumer.drain(stop)


def show_consumed(done: Consumed) -> int:
    """Print the outcomes of a consumer's drain. Returns the exit code."""
    is_held_up = done.paused is not None or done.away is not None or done.stopped
    nothing = "nothing handled" if is_held_up else "nothing to do"
    counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(done.outcomes.items())) or nothing
    typer.echo(counted + (f"; {done.waiting} {_waits(done.waiting)} for a later retry" if done.waiting else ""))
    if done.paused is not None:
        typer.echo(str(done.paused), err=True)
    if done.away is not None:
        typer.echo(f"stopped while {done.away}", err=True)
    elif done.stopped:
        typer.echo(STOPPED, err=True)
    return INCOMPLETE if is_held_up else 0
