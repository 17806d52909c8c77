"""`outboxkit relay` and `outboxkit consume`: the two workers."""

import asyncio
import sys
from typing import Annotated

import typer

from outboxkit.cli.options import with_options
from outboxkit.database import silence
from outboxkit.inbox import Handler, Wiring
from outboxkit.relay import Drained
from outboxkit.runtime import admin, compose, logs, process, queues
from outboxkit.runtime.settings import Settings

INCOMPLETE = 3
"""Exit code of `--drain` if due messages could not be published, or if the relay or a queue is paused."""

Modules = Annotated[list[str], typer.Argument(metavar="MODULE...", help="Modules with handlers, e.g. shop.handlers.")]
Drain = Annotated[bool, typer.Option("--drain", help="Do what is due, then exit.")]


@with_options(
    *("database_url", "broker_url", "exchange", "destination", "batch_size", "publish_timeout", "max_attempts"),
    *("published_retention", "admin_port"),
    logs=True,
)
def relay(settings: Settings, *, drain: Drain = False) -> None:
    """Publish the messages that committed transactions added for a destination. Run as many as you like.

    Example: outboxkit relay --batch-size 500
    """
    code = process.run(lambda stop: _relay(settings, stop, drain=drain), shutdown_timeout=settings.shutdown_timeout)
    sys.exit(process.leave(code))


async def _relay(settings: Settings, stop: asyncio.Event, *, drain: bool) -> int:
    _warn(settings, drain=drain)
    async with compose.relay(settings) as worker:
        if not drain:
            async with admin.serving(settings, worker):
                await worker.run(stop)
            return 0
        done = await worker.drain(stop, patience=settings.publish_timeout)
    typer.echo(_summary(done), err=not done.is_complete)
    return 0 if done.is_complete else INCOMPLETE


def _summary(done: Drained) -> str:
    lines = [f"published {done.published}"]
    if done.paused is not None:
        lines.append(str(done.paused))
    if done.later:
        lines.append(f"{done.later} wait for a later time")
    if done.blocked is None:
        lines.append("stopped while the database was away: what is left could not be counted")
    if done.blocked and done.paused is None:
        why = "another relay holds them, or the drain was stopped; the log says more"
        lines.append(f"{done.blocked} due, but not published: {why}")
    elif done.blocked:
        lines.append(f"{done.blocked} due, but not published")
    if done.expired:
        lines.append(f"expired {done.expired}, set aside as dead letters")
    if done.discarded:
        lines.append(f"discarded {done.discarded} that no queue wanted")
    lines += [f"{count} {kind} set aside as dead letters: {reason}" for kind, (count, reason) in done.dead.items()]
    lines += [f"{count} {kind} could not be published: {reason}" for kind, (count, reason) in done.failed.items()]
    return "\n".join(lines)


def _warn(settings: Settings, *, drain: bool) -> None:
    silence.announce(None)  # its log has outages
    if drain and settings.admin_port is not None:
        reason = "a command with --drain opens none; its exit code tells how it went"
        logs.logger().warning("no admin port", reason=reason, admin_port=str(settings.admin_port))


@with_options(
    *("queue", "bind", "declare", "database_url", "broker_url", "readers", "concurrency", "ordered", "shards"),
    *("exchange", "max_attempts", "retry_delays", "inbox_retention", "admin_port"),
    logs=True,
)
def consume(settings: Settings, modules: Modules, *, drain: Drain = False) -> None:
    """Receive messages and run their handlers, each effect once.

    Example: outboxkit consume shop.handlers --queue billing --queue mails:2
    """
    queues.consumed_queues(settings)
    handlers, wiring = compose.load_handlers(modules), compose.load_wiring(modules)
    code = process.run(
        lambda stop: _consume(settings, handlers, wiring, stop, drain=drain), shutdown_timeout=settings.shutdown_timeout
    )
    sys.exit(process.leave(code))


async def _consume(
    settings: Settings, handlers: list[Handler], wiring: Wiring, stop: asyncio.Event, *, drain: bool
) -> int:
    _warn(settings, drain=drain)
    async with compose.consumer(settings, handlers, wiring=wiring, drain=drain) as worker:
        if not drain:
            async with admin.serving(settings, worker):
                await worker.run(stop)
            return 0
        done = await worker.drain(stop)
    nothing = "nothing to do" if done.paused is None else "nothing handled"
    counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(done.outcomes.items())) or nothing
    typer.echo(counted + (f"; {done.postponed} wait for a later retry" if done.postponed else ""))
    if done.paused is not None:
        typer.echo(str(done.paused), err=True)
    return 0 if done.paused is None else INCOMPLETE
