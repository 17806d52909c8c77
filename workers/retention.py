"""Retention as a program that stays, for where no timer runs `outboxkit prune`: `python workers/retention.py`."""

import asyncio
import sys

from outboxkit import process, settings
from outboxkit.errors import OutboxkitError
from outboxkit.retention import Periods, Retention
from outboxkit.settings import Settings


async def retain(chosen: Settings, stop: asyncio.Event) -> int:
    """Prune now and after each interval, until `stop` is set."""
    engine = process.engine(chosen.database_url.get_secret_value(), name="outboxkit retention")
    try:
        periods = Periods(
            inbox=chosen.inbox_retention,
            skew=chosen.clock_skew,
            published=chosen.keep_published,
            dead=chosen.dead_retention,
        )
        await Retention(engine, periods).run(stop, interval=chosen.prune_interval)
    finally:
        await engine.dispose()
    return 0


if __name__ == "__main__":
    try:
        chosen = settings.load()
        process.configure_log(level=chosen.log_level, format=chosen.log_format)
        sys.exit(process.run(lambda stop: retain(chosen, stop), shutdown_timeout=chosen.shutdown_timeout))
    except OutboxkitError as error:
        sys.exit(f"retention: {error}")
