"""The one place that turns settings into a relay, a consumer or a retention, for commands and programs alike."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from outboxkit import defaults, schema
from outboxkit.database.session_names import CONSUMER_SESSION, RETENTION_SESSION, session_name
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConfigurationError,
    LifespanError,
    OutboxkitError,
    SchemaError,
)
from outboxkit.errors.extras import how_to_install
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import is_disk_full, refused_connection
from outboxkit.exit_codes import FAILED, WRONG_SETTINGS
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.runtime import logs, process, urls
from outboxkit.runtime.supervised import supervised

if TYPE_CHECKING:
    from datetime import timedelta

    from outboxkit.brokers import Publisher, Subscriber
    from outboxkit.codec.envelopes import Reader
    from outboxkit.consumer import Consumer, ConsumerPolicy, Consumers, ShardedConsumer
    from outboxkit.inbox import Handler, Wiring
    from outboxkit.relay import Relay, RelayPolicy
    from outboxkit.runtime.retention import Retention
    from outboxkit.runtime.settings import Settings as Settings  # noqa: PLC0414 - for the annotations of programs
    from outboxkit.runtime.sources import Shards

_UNSET_BROKER = urls.shown(defaults.BROKER_URL)
"""The address of the broker if none is set, as errors and the log have it."""


@asynccontextmanager
async def relay(
    settings: "Settings",
    *,
    engine: AsyncEngine | None = None,
    publisher: "Publisher | None" = None,
    policy: "RelayPolicy | None" = None,
) -> AsyncIterator["Relay"]:
    """A relay of these settings. Its engine and publisher may be your own; either way they are closed at the end.

    A `policy` of your own stands for `max_attempts` of the settings.

    Raises:
        ConfigurationError: the broker is `memory://`, or an HTTP destination that has no name of its own.
        SchemaError: there is no such SQLite file.
    """
    from outboxkit.relay import Relay, RelayPolicy  # noqa: PLC0415 - each process imports what it runs

    publisher = publisher or _publisher(settings)
    if engine is None:
        limit = settings.publish_timeout * (2 if publisher.slow else 1)
        engine = process.relay_engine(database_url(settings), publish_timeout=limit, destination=settings.destination)
    batch_size = settings.batch_size or defaults.BATCH_SIZE
    try:
        yield Relay(
            engine,
            publisher,
            destination=settings.destination,
            batch_size=min(batch_size, publisher.batch_limit or batch_size),
            policy=policy or RelayPolicy(max_attempts=settings.max_attempts),
            keep_published=settings.published_retention is not None,
        )
    finally:
        await publisher.close()
        await engine.dispose()


def _publisher(settings: "Settings") -> "Publisher":
    url = broker_url(settings)
    if process.is_http(url) and settings.destination == DEFAULT_DESTINATION:
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is an HTTP URL, and the messages of destination 'default' are for the broker. "
            "Name the destination whose messages go there, with --destination NAME or OUTBOXKIT_DESTINATION=NAME"
        )
    authorization, secret = settings.http_authorization, settings.http_secret
    return process.publisher(
        url,
        exchange=settings.exchange,
        timeout=settings.publish_timeout,
        concurrency=settings.concurrency,
        authorization=None if authorization is None else authorization.get_secret_value(),
        secret=None if secret is None else secret.get_secret_value(),
    )


@asynccontextmanager
async def consumer(
    settings: "Settings",
    handlers: "Sequence[Handler]",
    *,
    engine: AsyncEngine | None = None,
    subscriber: "Subscriber | None" = None,
    policy: "ConsumerPolicy | None" = None,
    wiring: "Wiring | None" = None,
    readers: "Sequence[Reader] | None" = None,
    drain: bool = False,
) -> AsyncIterator["Consumer | Consumers | ShardedConsumer"]:
    """A consumer of these settings, or the consumers of several queues, each with the handlers that name its queue.

    Its engine and subscriber may be your own; either way they are closed at the end. A subscriber serves one queue.

    A `policy` of your own stands for `max_attempts`, `inbox_retention`, `retry_delays`, `max_message_bytes` and
    `ignore` of the settings, and `readers` for those of the settings. A consumer that is to `drain` waits out an outage
    for `publish_timeout`; without `drain` it waits for ever. The lifespan of `wiring` begins before the consumer does,
    and ends when the handlers have ended.

    Raises:
        ConfigurationError: no queue is named, or the broker is `memory://` or an HTTP destination. A handler names no
            queue although there are several, or a queue has no handler. A message could be tried again for longer than
            the inbox remembers it. Nothing provides a handler's parameter, or there is no reader of a name.
        LifespanError: the lifespan failed at its start or at its end.
        SchemaError: there is no such SQLite file.
    """
    from outboxkit.consumer import Consumer, ConsumerPolicy, Consumers  # noqa: PLC0415
    from outboxkit.inbox import Wiring  # noqa: PLC0415
    from outboxkit.runtime import queues  # noqa: PLC0415 - as above

    policy = policy or ConsumerPolicy(
        max_attempts=settings.max_attempts,
        retention=settings.inbox_retention,
        delays=settings.retry_delays,
        max_message_bytes=settings.max_message_bytes,
        ignore=settings.ignore or (),
    )
    policy.check(handlers)
    limits = queues.concurrency_of(settings)
    shards = queues.shards_of(settings)
    assigned = queues.assign(handlers, list(limits))
    if shards is not None and subscriber is not None:
        raise ConfigurationError(f"OUTBOXKIT_SHARDS is {shards.count}: a subscriber of your own serves one queue")
    url = "" if subscriber is not None else broker_url(settings)
    subscribers = {} if shards else queues.subscribers(settings, url, assigned, delays=policy.delays, own=subscriber)
    if readers is None:
        from outboxkit.inbox.wiring import load_readers  # noqa: PLC0415

        readers = load_readers(settings.readers or ())
    if engine is None:
        size = sum(queues.connections(handlers, limits[name]) for name, handlers in assigned.items())
        size *= len(shards.consumed) if shards else 1
        engine = database(settings, name=session_name(CONSUMER_SESSION, tuple(limits)), pool_size=size)
    patience = settings.publish_timeout if drain else None
    logs.show_records()

    def consumer_of(
        name: str, subscriber: "Subscriber", handlers: "Sequence[Handler]", shard: str | None = None
    ) -> Consumer:
        return Consumer(
            *(engine, subscriber, handlers),
            queue=name,
            shard=shard,
            concurrency=limits[name],
            policy=policy,
            patience=patience,
            readers=readers,
        )

    try:
        own = [handler for each in assigned.values() for handler in each]
        async with (wiring or Wiring()).running(own) as wired:
            assigned = queues.assign(wired, list(limits))
            if shards is not None:
                made = partial(consumer_of, shards.queue)
                yield _sharded(settings, engine, shards, assigned[shards.queue], policy, patience, made)
                return
            consumers = [consumer_of(name, each, assigned[name]) for name, each in subscribers.items()]
            several = Consumers(consumers, shutdown_timeout=settings.shutdown_timeout)
            yield several if len(consumers) > 1 else consumers[0]
    finally:
        for each in subscribers.values():
            await each.close()
        await engine.dispose()


def _sharded(
    settings: "Settings",
    engine: AsyncEngine,
    shards: "Shards",
    handlers: "Sequence[Handler]",
    policy: "ConsumerPolicy",
    patience: "timedelta | None",
    made: "Callable[[Subscriber, Sequence[Handler], str], Consumer]",
) -> "ShardedConsumer":
    from outboxkit.brokers.rabbitmq import RabbitSubscriber, ShardMove  # noqa: PLC0415
    from outboxkit.consumer import ShardConsumer, ShardedConsumer  # noqa: PLC0415
    from outboxkit.runtime import queues  # noqa: PLC0415 - as above

    url, limit = broker_url(settings), queues.concurrency_of(settings)[shards.queue]
    process.refuse_http(url)
    topics = queues.topics_of(settings, shards.queue, handlers)

    def consumer_of(queue: str) -> ShardConsumer:
        subscriber = RabbitSubscriber(
            url,
            queue,
            exchange=settings.exchange,
            topics=topics,
            prefetch=limit.prefetch(handlers),
            delays=policy.delays,
            ordered=True,
            shards=shards,
        )
        subscriber.max_unacked_bytes //= len(shards.consumed)
        return ShardConsumer(made(subscriber, handlers, queue), subscriber)

    move = ShardMove(url, settings.exchange, topics, policy.delays)
    return ShardedConsumer(
        *(engine, shards, consumer_of, move),
        handlers=handlers,
        publish_timeout=settings.publish_timeout,
        patience=patience,
    )


@asynccontextmanager
async def retention(settings: "Settings", *, name: str = RETENTION_SESSION) -> AsyncIterator["Retention"]:
    """A retention of these settings; its connections are called `name`.

    Raises:
        SchemaError: there is no such SQLite file.
    """
    from outboxkit.runtime.retention import Periods, Retention  # noqa: PLC0415 - as above

    engine = database(settings, name=name, pool_size=2)
    periods = Periods(
        inbox=settings.inbox_retention, published=settings.published_retention, dead=settings.dead_retention
    )
    try:
        yield Retention(engine, periods)
    finally:
        await engine.dispose()


def database(settings: "Settings", *, name: str, pool_size: int = 5) -> AsyncEngine:
    """The engine for a process that needs the tables, and so makes no SQLite file.

    Raises:
        SchemaError: there is no such file.
    """
    return process.engine(database_url(settings), name=name, pool_size=pool_size)


def database_url(settings: "Settings") -> str:
    """The URL of the database. An SQLite file has to be there."""
    text = settings.database_url.get_secret_value()
    name = urls.file_of(text)
    if name is not None and not (path := Path(name)).exists() and path.parent.is_dir():
        raise SchemaError(
            f"the outboxkit tables are missing: run `outboxkit migrate` first; there is no file {name!r} yet"
        )
    return text


def broker_url(settings: "Settings") -> str:
    """The broker's URL, for a process that shares the broker with others."""
    url = settings.broker_url.get_secret_value()
    if url.startswith(process.MEMORY):
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is memory://, a broker inside one process: a relay and a consumer would never meet "
            "there. amqp://… is accepted here; `outboxkit demo` shows memory:// at work"
        )
    if "broker_url" not in settings.model_fields_set:
        logs.logger().warning("OUTBOXKIT_BROKER_URL is not set: its default is used", broker=_UNSET_BROKER)
    return url


def load_handlers(names: Sequence[str]) -> "list[Handler]":
    """The handlers of these modules, which are importable from the current directory.

    Raises:
        ConfigurationError: one cannot be imported, has no handlers, or handlers that cannot be used.
    """
    from outboxkit import inbox  # noqa: PLC0415 - as above
    from outboxkit.inbox.wiring import load_module  # noqa: PLC0415

    if not names:
        raise ConfigurationError("which handlers? Give the modules that have them, such as shop.handlers")
    if options := [name for name in names if name.startswith("-")]:
        raise ConfigurationError(f"{options[0]!r} is not a module: settings come from OUTBOXKIT_… variables here")
    return inbox.handlers_in([load_module(name) for name in names])


def load_wiring(names: Sequence[str]) -> "Wiring":
    """The `Wiring` of these modules, an empty one if they have none.

    Raises:
        ConfigurationError: one cannot be imported, or there are two of them.
    """
    from outboxkit import inbox  # noqa: PLC0415 - as above
    from outboxkit.inbox.wiring import load_module  # noqa: PLC0415

    return inbox.wiring_in([load_module(name) for name in names])


def set_up(settings: "Settings") -> None:
    """Set up the log, and warn of `OUTBOXKIT_…` variables that are not settings."""
    from outboxkit.runtime.settings import unknown_variables  # noqa: PLC0415 - as above

    logs.configure_log(level=settings.log_level)
    for line in unknown_variables():
        logs.logger().warning(line)


def main(name: str, service: "Callable[[Settings, asyncio.Event], Awaitable[int]]", *, arguments: bool = False) -> int:
    """Run a program's service with the settings of its environment; returns the exit code, as the commands have it.

    Args:
        name: of the program, for errors.
        service: the function that runs until the event is set.
        arguments: whether the service reads the command line; else one that is given is refused.
    """
    try:
        from outboxkit.runtime.settings import load  # noqa: PLC0415 - an extra; without it this is one line, too

        _refuse(sys.argv[1:] if not arguments else [])
        settings = load()
        set_up(settings)
        return process.leave(
            process.run(lambda stop: service(settings, stop), shutdown_timeout=settings.shutdown_timeout)
        )
    except Exception as error:  # noqa: BLE001 - whatever it is becomes one line
        text, code = explain(error)
        if not is_told(text):
            sys.stderr.write(f"{name}: {text}\n")
        return code


def is_told(text: str) -> bool:
    """Tell the supervisor, if there is one, why this process ends. It prints that once for all of its processes."""
    if (supervisor := supervised()) is not None:
        supervisor.tell(text)
    return supervisor is not None


def _ended(text: str) -> str:
    """A server's text without its own full stop and gaps, for a sentence around it."""
    return " ".join(text.split()).rstrip(".?!")


def _refuse(arguments: Sequence[str]) -> None:
    if arguments:
        raise ConfigurationError(f"{arguments[0]!r} is not accepted: settings come from OUTBOXKIT_… variables here")


def _question(text: str, variable: str) -> str:
    """The cure of a server or a file of SQLite that is away or full, or the question that leads to it, by the text."""
    if "DiskFull" in text:
        return "Make room on the disk of the database's server"
    if re.search("database is locked|disk is full|disk I/O error", text):
        return "Has another process a transaction open in this file, or is its disk full?"
    return f"Is it running, are host and port in {variable} right, and does the network let this machine through?"


def explain(error: Exception) -> tuple[str, int]:
    """The line and the exit code for an error that ends a process. One that nobody expected is logged, too."""
    if isinstance(error, ConfigurationError | BrokerRefused):
        return str(error), WRONG_SETTINGS
    if isinstance(error, BrokerUnavailable):
        text = f"the {error.peer} is away: {_ended(str(error))}"
        if _UNSET_BROKER in text and not {"OUTBOXKIT_BROKER_URL", "OUTBOXKIT_BROKER_URL_FILE"} & os.environ.keys():
            return f"{text}. OUTBOXKIT_BROKER_URL is not set, and this is its default: set it to your broker's", FAILED
        variable = "OUTBOXKIT_DATABASE_URL" if error.peer == "database" else "OUTBOXKIT_BROKER_URL"
        return f"{text}. {_question(text, variable)}", FAILED
    if isinstance(error, LifespanError):
        logs.logger().error("the lifespan failed", exc_info=error.__cause__)
    if isinstance(error, OutboxkitError):
        return f"{urls.named_by(error)}{error}", FAILED
    if isinstance(error, DBAPIError):
        from outboxkit.runtime.outage import is_refusal, what_is_away  # noqa: PLC0415 - as above

        if is_refusal(error) and (refusal := refused_connection(error)) is not None:
            text = f"{urls.named_by(error)}the database refuses the connection: {_ended(first_line(error))}"
            return f"{text}; {refusal[1]}", WRONG_SETTINGS
        if what_is_away(error) or is_disk_full(error):
            text = f"the database is away: {_ended(first_line(error))}"
            return f"{urls.named_by(error)}{text}. {_question(text, 'OUTBOXKIT_DATABASE_URL')}", FAILED
        return f"{urls.named_by(error)}the database {schema.cure_of(error) or 'refused'}: {first_line(error)}", FAILED
    if isinstance(error, ImportError) and (cure := how_to_install(error)) is not None:
        return cure, WRONG_SETTINGS
    if not logs.is_configured():
        logs.configure_log(level="info")
    logs.logger().error("ended by an error that nobody expected", exc_info=error)
    return f"an error that nobody expected, please report it: {first_line(error)}", FAILED
