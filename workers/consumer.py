"""The consumer as a program of your own: `OUTBOXKIT_QUEUE=billing python workers/consumer.py billing.handlers`."""

import asyncio
import importlib
import sys

from outboxkit import inbox, process, settings
from outboxkit.consumer import Consumer, Pace, Policy
from outboxkit.errors import OutboxkitError


async def consume(chosen: settings.Settings, modules: list[str], stop: asyncio.Event) -> int:
    """Handle deliveries until `stop` is set. A copy imports its modules above and passes them to `handlers_in`."""
    handlers = inbox.handlers_in([importlib.import_module(name) for name in modules])
    queue, topics = str(chosen.queue), sorted({each.message_type for each in handlers})
    database, broker = chosen.database_url.get_secret_value(), chosen.broker_url.get_secret_value()
    pace = Pace(chosen.concurrency, chosen.consume_batch, chosen.ordered)
    engine = process.engine(database, name=f"outboxkit consumer {queue}"[:63], pool_size=pace.concurrency + 1)
    ladder, exchange, ahead = chosen.retry_ladder, chosen.exchange, pace.prefetch(handlers, chosen.prefetch)
    subscriber = process.subscriber(
        broker, queue, exchange=exchange, topics=topics, prefetch=ahead, ladder=ladder, ordered=pace.ordered
    )
    policy = Policy(chosen.max_attempts, chosen.inbox_retention, chosen.clock_skew, chosen.max_crashes, ladder)
    try:
        await Consumer(engine, subscriber, handlers, queue=queue, pace=pace, policy=policy).run(stop)
    finally:
        await subscriber.close()
        await engine.dispose()
    return 0


if __name__ == "__main__":
    try:
        chosen = settings.load()
        if not chosen.queue or not (modules := sys.argv[1:]):
            sys.exit("usage: OUTBOXKIT_QUEUE=name python workers/consumer.py MODULE...")
        process.configure_log(level=chosen.log_level, format=chosen.log_format)
        sys.exit(process.run(lambda stop: consume(chosen, modules, stop), shutdown_timeout=chosen.shutdown_timeout))
    except OutboxkitError as error:
        sys.exit(f"consumer: {error}")
