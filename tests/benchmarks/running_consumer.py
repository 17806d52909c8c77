"""A consumer in a process of its own, which tells on standard output how it gets on.

One line of JSON in: `Orders`. Then it says "ready", waits for a line, and consumes until it is through with as many
messages as were ordered, saying now and then how many that are. The last line is what `Watch` has read.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from outboxkit.runtime import process
from tests.benchmarks.drains import DRAINS, Drain, Orders
from tests.benchmarks.readings import Reading, Watch
from tests.benchmarks.running_relay import cpu, resident, say

LOOK_EVERY_SECONDS = 0.01


async def main() -> None:
    orders = Orders(**json.loads(sys.stdin.readline()))
    watch = Watch(orders.count, orders.every)
    async with DRAINS[orders.consumer](orders) as drain:
        say("ready")
        sys.stdin.readline()
        stop = asyncio.Event()
        work = asyncio.ensure_future(drain.work(stop))
        threading.Thread(target=end_with_parent, daemon=True).start()
        await follow(drain, watch, until=work.done)
        if watch.is_over:
            say([asdict(one) for one in watch.readings])
        stop.set()
        await work


async def follow(drain: Drain, watch: Watch, *, until: Callable[[], bool]) -> None:
    """Look at it again and again until everything is done, or something else has come to pass."""
    ended = False
    while not watch.is_over and not ended:
        ended = until()
        if watch.is_due(drain.done()):
            sent = (drain.sent.round_trips(), len(drain.sent.texts())) if drain.sent is not None else ()
            watch.readings.append(Reading(time.monotonic_ns(), drain.done(), cpu(), resident(), *sent))
            say(watch.readings[-1].done)
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def end_with_parent() -> None:
    """Leave at once where standard input ends: nobody is there any more who would hear the rest."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    process.configure_log(level="warning")
    gc.collect()
    gc.freeze()  # as `process.run` does, and for all of them
    asyncio.run(main())
