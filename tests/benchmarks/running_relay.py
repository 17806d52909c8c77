"""A relay in a process of its own, which tells on standard output how it gets on.

One line of JSON in: `Orders`. Then it says "ready", waits for a line, works, and stops at the next line. A line for
each batch says how many messages have been confirmed; the last one is its `Report`.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

from sqlalchemy import text

from outboxkit.brokers import Publisher, Receipt, Verdict
from outboxkit.message import Message
from outboxkit.relay import Relay
from outboxkit.runtime import process
from tests.support.statements_sent import StatementsSent

STATM = Path("/proc/self/statm")
RESIDENT_EVERY = 20


@dataclass(frozen=True)
class Orders:
    """What a relay is to do."""

    database_url: str
    broker_url: str
    exchange: str
    batch_size: int = 2000
    poll_interval: float = 0.25
    ids: bool = False
    trace: bool = False
    warm_up: float = 0.0


@dataclass
class Report:
    """What a relay has done. Times are nanoseconds of the machine's monotonic clock.

    Attributes:
        started: when it was told to begin, or had warmed up.
        confirmed: for each batch, when the last confirm had come, and of how many messages.
        cpu: seconds of this process's time until the last confirm.
        stopped: when it was told to stop.
        cpu_until_stopped: seconds of this process's time until then.
        resident: MiB, now and then.
        statements: what PostgreSQL was sent; only where it was to be counted.
        ids: when each message was confirmed; only where that was asked.
    """

    started: int = 0
    confirmed: list[tuple[int, int]] = field(default_factory=list)
    cpu: float = 0.0
    stopped: int = 0
    cpu_until_stopped: float = 0.0
    resident: list[float] = field(default_factory=list)
    statements: int = 0
    ids: dict[str, int] = field(default_factory=dict)


class Watched(Publisher):
    """A publisher that notes when each batch is confirmed."""

    def __init__(self, inner: Publisher, report: Report, *, ids: bool) -> None:
        self._inner = inner
        self._report = report
        self._ids = ids
        self._cpu = cpu()

    async def connect(self) -> None:
        await self._inner.connect()

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        receipts = await self._inner.publish(batch)
        now = time.monotonic_ns()
        count = sum(receipt.verdict is Verdict.CONFIRMED for receipt in receipts)
        self._report.confirmed.append((now, count))
        self._report.cpu = cpu() - self._cpu
        if self._ids:
            self._report.ids.update(dict.fromkeys((message.id for message in batch), now))
        if len(self._report.confirmed) % RESIDENT_EVERY == 1:
            self._report.resident.append(resident())
        say(count)
        return receipts

    async def close(self) -> None:
        await self._inner.close()

    def begin(self) -> None:
        """From now on it counts."""
        self._report.started = time.monotonic_ns()
        self._cpu = cpu()

    def end(self) -> None:
        """What follows does not count."""
        self._report.stopped = time.monotonic_ns()
        self._report.cpu_until_stopped = cpu() - self._cpu


def cpu() -> float:
    """Seconds that this process has computed."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident() -> float:
    """This process's memory in MiB."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


async def main() -> None:
    orders = Orders(**json.loads(sys.stdin.readline()))
    report = Report()
    engine = process.relay_engine(orders.database_url, publish_timeout=timedelta(seconds=10))
    sent = StatementsSent(engine) if orders.trace else None
    inner = process.publisher(orders.broker_url, exchange=orders.exchange, timeout=timedelta(seconds=10))
    publisher = Watched(inner, report, ids=orders.ids)
    relay = Relay(
        engine, publisher, batch_size=orders.batch_size, poll_interval=timedelta(seconds=orders.poll_interval)
    )
    await publisher.connect()
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    say("ready")
    sys.stdin.readline()
    stop = asyncio.Event()
    publisher.begin()
    work = asyncio.ensure_future(relay.run(stop))
    since = 0
    if orders.warm_up:
        await asyncio.sleep(orders.warm_up)
        publisher.begin()
        since = len(sent.texts()) if sent is not None else 0
    await asyncio.wait(
        (work, asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))), return_when="FIRST_COMPLETED"
    )
    publisher.end()
    stop.set()
    await work
    await publisher.close()
    await engine.dispose()
    if sent is not None:
        report.statements = len(sent.texts()) - since
        sent.close()
    say(asdict(report))


if __name__ == "__main__":
    process.configure_log(level="warning")
    asyncio.run(main())
