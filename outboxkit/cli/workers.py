"""`outboxkit relay` and `outboxkit consume`: the two workers."""

import asyncio
import sys
from typing import Annotated

import typer

from outboxkit import inbox, process
from outboxkit.cli.options import BROKER, DATABASE, PROCESS, with_settings
from outboxkit.consumer import Consumer, Pace, Policy
from outboxkit.errors import ConfigurationError
from outboxkit.inbox import Handler, loading
from outboxkit.relay import Drained, Relay
from outboxkit.relay import Policy as RelayPolicy
from outboxkit.settings import Settings

INCOMPLETE = 3
"""Exit code of `relay --drain` where due messages could not be published."""

Modules = Annotated[list[str], typer.Argument(metavar="MODULE...", help="Modules with handlers, e.g. shop.handlers.")]
Drain = Annotated[bool, typer.Option("--drain", help="Do what is due, then exit.")]


@with_settings(
    *DATABASE,
    *BROKER,
    *("destination", "app_id", "batch_size", "publish_timeout", "poll_interval"),
    *("concurrency", "http_authorization", "http_secret", "http_cloudevents"),
    *("max_attempts", "unroutable", "dead_key", "keep_published"),
    *PROCESS,
)
def relay(chosen: Settings, *, drain: Drain = False) -> None:
    """Publish what committed transactions left in the outbox for a destination. Run as many as you like.

    With --drain: exit 0 once all that was due is published, 3 where some of it could not be.

    Example: outboxkit relay --database-url postgresql+psycopg://app@db/shop --broker-url amqp://app@mq/
    """
    process.configure_log(level=chosen.log_level, format=chosen.log_format)
    sys.exit(process.run(lambda stop: _relay(chosen, stop, drain=drain), shutdown_timeout=chosen.shutdown_timeout))


async def _relay(chosen: Settings, stop: asyncio.Event, *, drain: bool) -> int:
    limit, requests, broker = chosen.publish_timeout, _requests(chosen), _broker_url(chosen)
    over_http = process.is_http(broker)
    publisher = process.publisher(
        broker, exchange=chosen.exchange, timeout=limit, app_id=chosen.app_id, requests=requests
    )
    engine = process.relay_engine(
        chosen.database_url.get_secret_value(), publish_timeout=limit * 2 if over_http else limit
    )
    worker = Relay(
        engine,
        publisher,
        destination=chosen.destination,
        batch_size=requests.rows(chosen.batch_size) if over_http else chosen.batch_size,
        poll_interval=chosen.poll_interval,
        policy=RelayPolicy(chosen.max_attempts, chosen.unroutable, chosen.dead_key),
        keep_published=chosen.keep_published is not None,
        hold=not (over_http and engine.dialect.name == "sqlite"),
    )
    try:
        if not drain:
            await worker.run(stop)
            return 0
        done = await worker.drain(stop, patience=limit)
    finally:
        await publisher.close()
        await engine.dispose()
    typer.echo(_summary(done), err=not done.is_complete)
    return 0 if done.is_complete else INCOMPLETE


def _requests(chosen: Settings) -> process.Requests:
    authorization, secret = chosen.http_authorization, chosen.http_secret
    return process.Requests(
        concurrency=chosen.concurrency,
        authorization=authorization.get_secret_value() if authorization is not None else None,
        secret=secret.get_secret_value() if secret is not None else None,
        cloudevents=chosen.http_cloudevents,
        max_answer=chosen.max_payload_bytes,
    )


def _summary(done: Drained) -> str:
    lines = [f"published {done.published}"]
    if done.later:
        lines.append(f"{done.later} wait for a later time")
    if done.held is None:
        lines.append("stopped while the database was away: what is left could not be counted")
    if done.held:
        lines.append(f"{done.held} due, but not published: another relay holds them, or the drain was stopped")
    if done.expired:
        lines.append(f"{done.expired} had expired and were set aside as dead letters")
    if done.discarded:
        lines.append(f"{done.discarded} that no queue wanted were discarded")
    lines += [f"{count} {kind} set aside as dead letters: {reason}" for kind, (count, reason) in done.dead.items()]
    lines += [f"{count} {kind} could not be published: {reason}" for kind, (count, reason) in done.failed.items()]
    return "\n".join(lines)


@with_settings(
    *("queue", *DATABASE, *BROKER),
    *("concurrency", "prefetch", "consume_batch", "ordered"),
    *("max_attempts", "retry_ladder", "max_crashes", "inbox_retention", "clock_skew"),
    *PROCESS,
)
def consume(chosen: Settings, modules: Modules, *, drain: Drain = False) -> None:
    """Receive messages and run their handlers, each effect once.

    Example: outboxkit consume shop.handlers --queue billing
    """
    if chosen.queue is None:
        raise ConfigurationError("which queue? Give --queue NAME, or set OUTBOXKIT_QUEUE")
    process.configure_log(level=chosen.log_level, format=chosen.log_format)
    handlers = inbox.handlers_in([loading.load(name) for name in modules])
    code = process.run(
        lambda stop: _consume(chosen, str(chosen.queue), handlers, stop, drain=drain),
        shutdown_timeout=chosen.shutdown_timeout,
    )
    sys.exit(code)


async def _consume(chosen: Settings, queue: str, handlers: list[Handler], stop: asyncio.Event, *, drain: bool) -> int:
    policy = Policy(
        chosen.max_attempts, chosen.inbox_retention, chosen.clock_skew, chosen.max_crashes, chosen.retry_ladder
    )
    policy.check(handlers)
    url = chosen.database_url.get_secret_value()
    pace = Pace(chosen.concurrency, chosen.consume_batch, chosen.ordered)
    engine = process.engine(url, name=f"outboxkit consumer {queue}"[:63], pool_size=pace.concurrency + 1)
    subscriber = process.subscriber(
        _broker_url(chosen),
        queue,
        exchange=chosen.exchange,
        topics=sorted({handler.message_type for handler in handlers}),
        prefetch=pace.prefetch(handlers, chosen.prefetch),
        ladder=chosen.retry_ladder,
        ordered=pace.ordered,
    )
    worker = Consumer(
        engine,
        subscriber,
        handlers,
        queue=queue,
        pace=pace,
        policy=policy,
        patience=chosen.publish_timeout if drain else None,
    )
    try:
        if not drain:
            await worker.run(stop)
            return 0
        done = await worker.drain(stop)
    finally:
        await subscriber.close()
        await engine.dispose()
    counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(done.outcomes.items())) or "nothing to do"
    typer.echo(counted + (f"; {done.postponed} wait for a later retry" if done.postponed else ""))
    return 0


def _broker_url(chosen: Settings) -> str:
    url = chosen.broker_url.get_secret_value()
    if url.startswith(process.MEMORY):
        raise ConfigurationError(
            "OUTBOXKIT_BROKER_URL is memory://, a broker inside one process: a relay and a consumer would never meet "
            "there. amqp://… is accepted here; `outboxkit demo` shows memory:// at work"
        )
    return url
