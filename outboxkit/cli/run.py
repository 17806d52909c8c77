"""`outboxkit run`: relay, consumer and retention in one process, with a SQLite file if no server is named."""

import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Annotated, Protocol

import typer
from sqlalchemy import StaticPool
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import defaults, schema
from outboxkit.cli.connections import connected
from outboxkit.cli.options import with_options
from outboxkit.cli.workers import (
    Drain,
    Modules,
    Processes,
    distribute,
    drain_consumer,
    drain_relay,
    run_service,
    show_consumed,
    show_drained,
)
from outboxkit.database import silence
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.inbox import Handler, Wiring
from outboxkit.operators import audit
from outboxkit.relay import Relay
from outboxkit.runtime import admin, compose, lifetime, logs, process, urls
from outboxkit.runtime.health import Health
from outboxkit.runtime.outage import sleep_unless_stopped
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.sources import ConsumedQueue
from outboxkit.schema import migrations

EMBEDDED = {"database_url": f"sqlite:///{defaults.EMBEDDED_FILE}", "broker_url": f"{process.MEMORY}//"}
"""What is used if nothing else is set: a file in the current directory, and no broker."""
PRUNED_EACH = timedelta(hours=1)
LOOK_SECONDS = 0.05
"""The interval at which the relay looks whether the consumer has connected."""

Page = Annotated[bool, typer.Option("--console", help="Serve the page for operators, too; it only reads.")]
Reload = Annotated[bool, typer.Option("--reload", help="Start again when a Python file of this folder changes.")]


@with_options("database_url", "broker_url", "queue", logs=True, otherwise=EMBEDDED)
def run(
    settings: Settings,
    modules: Modules,
    *,
    drain: Drain = False,
    processes: Processes = 1,
    console: Page = False,
    reload: Reload = False,
) -> None:
    """Run relay, consumer and retention in one process: for development and for small services.

    Without settings, messages are kept in the file outboxkit.db of the current directory, and the relay hands them to
    their handlers in this process. With OUTBOXKIT_DATABASE_URL and OUTBOXKIT_BROKER_URL they go through these servers;
    the queue is then called like the first module's package. Missing tables are made.

    Example: outboxkit run shop
    """
    for name, is_given in (("--reload", reload), ("--console", console)):
        if is_given and (drain or processes > 1):
            raise ConfigurationError(
                f"{name} is for one process that runs until it is stopped: leave out --drain and --processes, or {name}"
            )
    if reload:
        sys.exit(_reload(settings))
    distribute(settings, processes, drain=drain)
    silence.announce(None)  # its log has outages
    handlers, wiring = compose.load_handlers(modules), compose.load_wiring(modules)
    if settings.queue is None:
        settings = settings.model_copy(update={"queue": (ConsumedQueue(modules[0].partition(".")[0]),)})
    service = _drain if drain else partial(_run, console=console)
    run_service(settings, lambda stop: service(settings, handlers, wiring, stop), drain=drain)


def _reload(settings: Settings) -> int:
    """Run this command without `--reload` in a process of its own, and again after each change of a Python file."""
    with needs_extra("--reload"):
        from watchfiles import PythonFilter, run_process  # noqa: PLC0415 - an extra
    logging.getLogger("watchfiles").setLevel(logging.ERROR)  # it warns of a stop
    signal.signal(signal.SIGINT, signal.default_int_handler)  # on which it ends the process that it watches over
    command = shlex.join([sys.executable, "-m", "outboxkit", *(each for each in sys.argv[1:] if each != "--reload")])
    wait = settings.shutdown_timeout.total_seconds() + lifetime.GIVE_BACK_SECONDS + lifetime.LEFT_SECONDS
    run_process(
        ".",
        target=command,
        target_type="command",
        watch_filter=PythonFilter(),
        callback=lambda changes: logs.logger().info(
            "files changed, starting again", files=sorted(p for _, p in changes)
        ),
        sigint_timeout=ceil(wait),
    )
    return 0


class _Part(admin.Worker, Protocol):
    """A relay or a consumer, beside others in the process."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""


async def _drain(settings: Settings, handlers: Sequence[Handler], wiring: Wiring, stop: asyncio.Event) -> int:
    """Publish what is due, handle it, and go on with what that adds. The consumer goes first: it declares the queue."""
    await _make_missing_tables(settings)
    patience = settings.publish_timeout
    if not _has_broker(settings):
        async with _in_process(settings, handlers, wiring) as relay:
            drained = await drain_relay(relay, stop, patience=patience)
        return show_drained(drained)
    async with compose.consumer(settings, handlers, wiring=wiring, drain=True) as consumer:
        consumed = await drain_consumer(consumer, stop)
    code, outcomes, is_first = 0, consumed.outcomes, True
    while True:
        async with compose.relay(settings) as relay:
            drained = await drain_relay(relay, stop, patience=patience)
        if is_first or drained.published or not drained.is_complete:
            code = max(code, show_drained(drained))
        if not is_first and not drained.published:
            break
        async with compose.consumer(settings, handlers, wiring=wiring, drain=True) as consumer:
            consumed = await drain_consumer(consumer, stop)
        outcomes, is_first = outcomes + consumed.outcomes, False
        if not drained.published or stop.is_set():
            break
    return max(code, show_consumed(replace(consumed, outcomes=outcomes)))


async def _run(
    settings: Settings, handlers: Sequence[Handler], wiring: Wiring, stop: asyncio.Event, *, console: bool
) -> int:
    await _make_missing_tables(settings)
    async with AsyncExitStack() as stack:
        workers = list[_Part]()
        if _has_broker(settings):
            workers.append(await stack.enter_async_context(compose.consumer(settings, handlers, wiring=wiring)))
            workers.append(_Behind(await stack.enter_async_context(compose.relay(settings)), workers[0]))
        else:
            workers.append(await stack.enter_async_context(_in_process(settings, handlers, wiring)))
        retention = await stack.enter_async_context(compose.retention(settings))
        parts: list[Callable[[asyncio.Event], Awaitable[None]]] = [each.run for each in workers]
        parts.append(partial(retention.run, interval=PRUNED_EACH))
        if console:
            parts.append(_page(settings))
        async with admin.serving(settings, _Workers(workers)):
            await lifetime.together(parts, stop, grace=settings.shutdown_timeout)
    return 0


def _page(settings: Settings) -> Callable[[asyncio.Event], Awaitable[None]]:
    from outboxkit.console import serving  # noqa: PLC0415 - an extra

    return serving.serve(
        settings,
        port=0,
        user=audit.system_user(),
        may=("read",),
        also=(),
        say=lambda link: typer.echo(f"The console is at {link}\nThe link works once."),
    )


def _has_broker(settings: Settings) -> bool:
    return not settings.broker_url.get_secret_value().startswith(process.MEMORY)


async def _make_missing_tables(settings: Settings) -> None:
    url = settings.database_url.get_secret_value()
    async with connected(url, "run") as engine, engine.begin() as connection:
        if isinstance(engine.pool, StaticPool):
            raise ConfigurationError(
                f"OUTBOXKIT_DATABASE_URL is a database in memory, which ends with its connection, and `run` needs "
                f"several. A file is accepted, such as {EMBEDDED['database_url']}"
            )
        if await connection.run_sync(schema.installed) == 0 and (await connection.run_sync(migrations.migrate))[0] == 0:
            logs.logger().info("the outboxkit tables were made", database=urls.shown(url))


@asynccontextmanager
async def _in_process(settings: Settings, handlers: Sequence[Handler], wiring: Wiring) -> AsyncIterator[Relay]:
    """A relay that hands each message to its handlers."""
    from outboxkit.consumer.direct import DirectPublisher  # noqa: PLC0415 - only here

    async with AsyncExitStack() as stack:
        engine = compose.database(settings, name="outboxkit run", pool_size=1)
        stack.push_async_callback(engine.dispose)
        wired = await stack.enter_async_context(wiring.running(handlers))
        publisher = DirectPublisher(engine, wired, timeout=settings.publish_timeout, retention=settings.inbox_retention)
        yield await stack.enter_async_context(compose.relay(settings, publisher=publisher))


@dataclass(frozen=True)
class _Behind:
    """A relay that begins when the consumer has connected, and so declared its queue."""

    relay: Relay
    consumer: _Part

    @property
    def engine(self) -> AsyncEngine:
        """That of the relay."""
        return self.relay.engine

    def health(self) -> Health:
        """The relay's state."""
        return self.relay.health()

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the consumer, then publish."""
        while any(self.consumer.health().servers.values()) and not stop.is_set():
            await sleep_unless_stopped(stop, LOOK_SECONDS)
        await self.relay.run(stop)


@dataclass(frozen=True)
class _Workers:
    """The workers of the process as one, for the admin port."""

    workers: Sequence[_Part]

    @property
    def engine(self) -> AsyncEngine:
        """That of the first one: all use the same database."""
        return self.workers[0].engine

    def health(self) -> Health:
        """What hinders any of them."""
        states = [each.health() for each in self.workers]
        servers = {name: reason for state in states for name, reason in state.servers.items()}
        servers |= {name: reason for state in states for name, reason in state.servers.items() if reason is not None}
        relay = states[-1]
        return replace(relay, worker="run", servers=servers)
