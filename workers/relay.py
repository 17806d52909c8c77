"""The relay as a program of your own, for where `outboxkit relay` is not enough: `python workers/relay.py`."""

import asyncio
import sys

from outboxkit import process, settings
from outboxkit.errors import OutboxkitError
from outboxkit.relay import Policy, Relay
from outboxkit.settings import Settings


async def relay(chosen: Settings, stop: asyncio.Event) -> int:
    """Publish until `stop` is set."""
    limit = chosen.publish_timeout
    database, broker = chosen.database_url.get_secret_value(), chosen.broker_url.get_secret_value()
    engine = process.relay_engine(database, publish_timeout=limit)
    publisher = process.publisher(broker, exchange=chosen.exchange, timeout=limit, app_id=chosen.app_id)
    try:
        worker = Relay(
            engine,
            publisher,
            batch_size=chosen.batch_size,
            poll_interval=chosen.poll_interval,
            policy=Policy(chosen.max_attempts, chosen.unroutable, chosen.dead_key),
            keep_published=chosen.keep_published is not None,
        )
        await worker.run(stop)
    finally:
        await publisher.close()
        await engine.dispose()
    return 0


if __name__ == "__main__":
    try:
        chosen = settings.load()
        process.configure_log(level=chosen.log_level, format=chosen.log_format)
        sys.exit(process.run(lambda stop: relay(chosen, stop), shutdown_timeout=chosen.shutdown_timeout))
    except OutboxkitError as error:
        sys.exit(f"relay: {error}")
