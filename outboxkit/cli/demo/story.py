"""The story that `outboxkit demo` plays, and its progress bars and table."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import SecretStr
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sqlalchemy.ext.asyncio import async_sessionmaker

from outboxkit import inbox, migrations
from outboxkit.brokers import Publisher, Receipt, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.cli.demo import shop
from outboxkit.codec.payloads import decode
from outboxkit.consumer import Consumer, Consumers, ShardedConsumer
from outboxkit.inbox import Outcome
from outboxkit.message import Message
from outboxkit.runtime import compose, process
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.sources import ConsumedQueue

QUEUE = "demo"
ROLLED_BACK_EVERY = 10
TWICE_EVERY = 5


class RelayCrash(BaseException):
    """The relay's end at the worst moment. No `Exception`, so that nothing handles it."""


@dataclass(slots=True)
class Tally:
    """The counts of a story. The effects are counted in the database, and not by the parties themselves."""

    taken: int = 0
    rolled_back: int = 0
    published: int = 0
    published_again: int = 0
    crashes: int = 0
    deliveries: int = 0
    duplicates: int = 0
    orders: int = 0
    effects: int = 0
    orders_with_effect: int = 0
    invented: int = 0

    @property
    def lost(self) -> int:
        """Committed orders without an effect."""
        return self.orders - self.orders_with_effect

    @property
    def doubled(self) -> int:
        """Effects beyond the first of an order."""
        return self.effects - self.invented - self.orders_with_effect

    @property
    def is_right(self) -> bool:
        """Each committed order has one effect, and no other order has any."""
        return self.lost == self.doubled == self.invented == 0


class TroubledPublisher(Publisher):
    """Sends every fifth message twice, and crashes its relay once: after publishing, before settling."""

    def __init__(self, broker: MemoryBroker, tally: Tally, *, crash_after: int) -> None:
        self._inner = MemoryPublisher(broker)
        self._tally = tally
        self._crash_after = crash_after

    async def connect(self) -> None:
        """It is always connected."""

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish, send some twice, and crash once."""
        receipts = await self._inner.publish(batch)
        before = self._tally.published
        self._tally.published += sum(receipt.verdict is Verdict.CONFIRMED for receipt in receipts)
        await self._inner.publish([m for i, m in enumerate(batch, before) if i % TWICE_EVERY == 0])
        if self._tally.crashes == 0 and self._tally.published >= self._crash_after:
            self._tally.crashes += 1
            self._tally.published_again += len(batch)
            raise RelayCrash
        return receipts

    async def close(self) -> None:
        """There is nothing to close."""


def _settings(database_url: str) -> Settings:
    """The demo's own settings: those of the environment are for the workers of a service."""
    return Settings.model_construct(
        database_url=SecretStr(database_url), queue=(ConsumedQueue(QUEUE),), batch_size=50, concurrency=1
    )


class Story:
    """The demo's three parties on one SQLite database: the application, the relay, the consumer."""

    def __init__(self, database_url: str, *, orders: int, with_inbox: bool) -> None:
        self.tally = Tally()
        self.orders = orders
        self._engine = process.engine(database_url, name="outboxkit demo")
        self._broker = MemoryBroker()
        self._handler = inbox.handler_of(shop.send_receipt)
        self._subscriber = MemorySubscriber(self._broker, QUEUE, [self._handler.message_type])
        self._settings = _settings(database_url)
        self._consumer: Consumer | Consumers | ShardedConsumer | None = None
        self._with_inbox = with_inbox
        self._all_taken = asyncio.Event()

    async def tell(self) -> None:
        """Let the three parties work until everything that was committed has been published and handled."""
        async with self._engine.begin() as connection:
            await connection.run_sync(migrations.migrate)
            await connection.run_sync(shop.Shop.metadata.create_all)
        stop = asyncio.Event()
        consume = self._consume if self._with_inbox else self._consume_naively
        consuming = asyncio.create_task(consume(stop))
        await asyncio.gather(self._take_orders(), self._relay())
        while self._subscriber.queue.ready or self._subscriber.unacked:
            await asyncio.sleep(0.01)
            self.count_deliveries()
        stop.set()
        await asyncio.gather(consuming, return_exceptions=True)
        self.count_deliveries()
        await self._count_effects()
        await self._engine.dispose()

    def count_deliveries(self) -> None:
        """Take over the consumer's counts."""
        if self._consumer is not None:
            self.tally.deliveries = self._consumer.outcomes.total()
            self.tally.duplicates = self._consumer.outcomes[Outcome.DUPLICATE]

    async def _take_orders(self) -> None:
        sessions = async_sessionmaker(self._engine)
        for number in range(1, self.orders + 1):
            async with sessions() as session:
                shop.confirm(session, number)
                if number % ROLLED_BACK_EVERY == 0:
                    await session.flush()
                    await session.rollback()
                    self.tally.rolled_back += 1
                else:
                    await session.commit()
            self.tally.taken += 1
        self._all_taken.set()

    async def _relay(self) -> None:
        """Run relays until one has drained the outbox after the last order; a crashed one is replaced."""
        publisher = TroubledPublisher(self._broker, self.tally, crash_after=self.orders // 3)
        while True:
            last_round = self._all_taken.is_set()
            try:
                async with compose.relay(self._settings, publisher=publisher) as relay:
                    await relay.drain(asyncio.Event())
            except RelayCrash:
                continue
            if last_round:
                return
            await asyncio.sleep(0.05)

    async def _consume(self, stop: asyncio.Event) -> None:
        async with compose.consumer(self._settings, [self._handler], subscriber=self._subscriber) as consumer:
            self._consumer = consumer
            await consumer.run(stop)

    async def _consume_naively(self, stop: asyncio.Event) -> None:
        """Handle, commit, ack: a consumer without an inbox."""
        sessions = async_sessionmaker(self._engine)
        while not stop.is_set():
            delivery = await self._subscriber.receive(wait=False)
            if delivery is None:
                await asyncio.sleep(0.01)
                continue
            assert isinstance(delivery.message, Message)  # noqa: S101 - the demo sends nothing else
            async with sessions() as session, session.begin():
                await shop.send_receipt(session, decode(shop.OrderConfirmed, delivery.message.payload))
            self.tally.deliveries += 1
            await delivery.ack()

    async def _count_effects(self) -> None:
        async with self._engine.connect() as connection:
            self.tally.orders = (await connection.execute(shop.count_orders())).scalar_one()
            counted = (await connection.execute(shop.count_receipts())).one()
        self.tally.effects, self.tally.orders_with_effect, self.tally.invented = counted


NEXT = """
The same works on PostgreSQL and RabbitMQ, with handlers of your own.

  export OUTBOXKIT_DATABASE_URL=postgresql+psycopg://user:password@localhost/shop
  export OUTBOXKIT_BROKER_URL=amqp://guest:guest@localhost:5672/

  outboxkit migrate
  outboxkit relay
  outboxkit consume shop.handlers --queue billing
"""

_console = Console(highlight=False)


async def watch(story: Story) -> None:
    """Run the story and show the progress of each party."""
    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    committed = story.orders - story.orders // ROLLED_BACK_EVERY
    with Progress(*columns, console=_console) as progress:
        bars = [
            progress.add_task(name, total=total)
            for name, total in (("orders", story.orders), ("published", committed), ("delivered", committed))
        ]
        telling = asyncio.create_task(story.tell())
        while True:
            done, _ = await asyncio.wait({telling}, timeout=0.1)
            story.count_deliveries()
            tally = story.tally
            for bar, completed in zip(bars, (tally.taken, tally.published, tally.deliveries), strict=True):
                progress.update(bar, completed=completed, total=max(progress.tasks[bar].total or 0, completed))
            if done:
                break
    await telling


def result(tally: Tally, *, with_inbox: bool) -> None:
    """Print the counts, the verdict, and the next commands to type."""
    table = Table(title="outboxkit demo" if with_inbox else "outboxkit demo, without the inbox", title_justify="left")
    table.add_column("what happened")
    table.add_column("count", justify="right")
    table.add_row("orders taken", str(tally.taken))
    table.add_row("  rolled back, so never sent", str(tally.rolled_back))
    table.add_row("  committed", str(tally.orders))
    table.add_row("messages published", str(tally.published))
    table.add_row("  again, after the relay crashed before settling", str(tally.published_again))
    table.add_row("deliveries, a fifth of them sent twice", str(tally.deliveries))
    table.add_row("  duplicates caught by the inbox", str(tally.duplicates) if with_inbox else "no inbox")
    table.add_row("effects (receipts in the database)", str(tally.effects), end_section=True)
    for name, count in (("lost", tally.lost), ("doubled", tally.doubled), ("invented", tally.invented)):
        table.add_row(f"[bold]{name}[/bold]", f"[bold {'green' if count == 0 else 'red'}]{count}[/]")
    _console.print()
    _console.print(table)
    if tally.is_right:
        _console.print("Every committed order has exactly one effect.", style="green")
    else:
        counted = f"{tally.lost} lost, {tally.doubled} doubled, {tally.invented} invented"
        _console.print(f"Effects: {counted}." + ("" if with_inbox else " That is what the inbox is for."), style="red")
    _console.print(NEXT, soft_wrap=True)
