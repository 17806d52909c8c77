"""`outboxkit demo`: the whole story on an embedded database and a broker inside the process."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from outboxkit import inbox
from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from outboxkit.cli.demo import shop
from outboxkit.codec.payloads import decode
from outboxkit.exit_codes import FAILED
from outboxkit.inbox import Outcome
from outboxkit.message import Message
from outboxkit.runtime import compose, process
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.sources import ConsumedQueue
from outboxkit.schema import migrations

QUEUE = "demo"
ROLLED_BACK_EVERY = 10
TWICE_EVERY = 5
NEXT = """
Next: five minutes with a file of your own, in the README; then docs/tutorial.md, on PostgreSQL and RabbitMQ.
"""

WithoutInbox = Annotated[
    bool, typer.Option("--without-inbox", help="Handle every delivery as if it were the first, and see the damage.")
]
Orders = Annotated[
    int, typer.Option("--orders", metavar="NUMBER", min=10, max=100_000, help="How many orders are taken.")
]


def demo(*, orders: Orders = 1000, without_inbox: WithoutInbox = False) -> None:
    """Take orders, roll some back, deliver messages twice, crash the relay; then count effects.

    Nothing has to be installed or running. Relay, consumer and tables are the ones that run in production.
    Exits 1 if an effect was lost or happened twice.

    Example: outboxkit demo --without-inbox
    """
    process.configure_log(level="error")
    with tempfile.TemporaryDirectory(prefix="outboxkit-demo-") as folder:
        tally = asyncio.run(_play(f"sqlite:///{Path(folder) / 'shop.db'}", orders, with_inbox=not without_inbox))
    _print(tally, with_inbox=not without_inbox)
    sys.exit(0 if tally.is_right else FAILED)


@dataclass(slots=True)
class Tally:
    """The counts of a story. The effects are counted in the database, and not by the parties themselves."""

    taken: int = 0
    rolled_back: int = 0
    published: int = 0
    published_again: int = 0
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


class RelayCrash(BaseException):
    """The relay's end at the worst moment. No `Exception`, so that nothing handles it."""


class TroubledPublisher(MemoryPublisher):
    """Sends every fifth message twice, and crashes its relay once: after publishing, before settling."""

    def __init__(self, broker: MemoryBroker, tally: Tally, *, crash_after: int) -> None:
        super().__init__(broker)
        self._tally, self._crash_after = tally, crash_after

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        """Publish, send some twice, and crash once."""
        receipts, tally = await super().publish(batch), self._tally
        await super().publish([each for number, each in enumerate(batch, tally.published) if not number % TWICE_EVERY])
        tally.published += sum(receipt.verdict is Verdict.CONFIRMED for receipt in receipts)
        if not tally.published_again and tally.published >= self._crash_after:
            tally.published_again = len(batch)
            raise RelayCrash
        return receipts


async def _play(url: str, orders: int, *, with_inbox: bool) -> Tally:
    """Take the orders, publish and handle their messages, and count the effects."""
    tally, engine, broker = Tally(), process.engine(url, name="outboxkit demo"), MemoryBroker()
    settings = Settings.model_construct(  # not those of the environment, which are for a service
        database_url=SecretStr(url), queue=(ConsumedQueue(QUEUE),), batch_size=50, concurrency=1
    )
    handler = inbox.handler_of(shop.send_receipt)
    subscriber = MemorySubscriber(broker, QUEUE, [handler.message_type])
    async with engine.begin() as connection:
        await connection.run_sync(migrations.migrate)
        await connection.run_sync(shop.Shop.metadata.create_all)
    await _take_orders(engine, orders, tally)
    publisher, crashed = TroubledPublisher(broker, tally, crash_after=orders // 3), True
    while crashed:  # a crashed relay is started again
        try:
            async with compose.relay(settings, publisher=publisher) as relay:
                await relay.drain(asyncio.Event())
            crashed = False
        except RelayCrash:
            continue
    if with_inbox:
        async with compose.consumer(settings, [handler], subscriber=subscriber, drain=True) as consumer:
            outcomes = (await consumer.drain(asyncio.Event())).outcomes
        tally.deliveries, tally.duplicates = sum(outcomes.values()), outcomes[Outcome.DUPLICATE]
    else:
        await _consume_naively(engine, subscriber, tally)
    async with engine.connect() as connection:
        tally.orders = (await connection.execute(shop.count_orders())).scalar_one()
        counted = (await connection.execute(shop.count_receipts())).one()
    tally.effects, tally.orders_with_effect, tally.invented = counted
    await engine.dispose()
    return tally


async def _take_orders(engine: AsyncEngine, orders: int, tally: Tally) -> None:
    sessions = async_sessionmaker(engine)
    for number in range(1, orders + 1):
        async with sessions() as session:
            shop.confirm(session, number)
            if number % ROLLED_BACK_EVERY == 0:
                await session.flush()
                await session.rollback()
                tally.rolled_back += 1
            else:
                await session.commit()
        tally.taken += 1


async def _consume_naively(engine: AsyncEngine, subscriber: MemorySubscriber, tally: Tally) -> None:
    """Handle, commit, ack: a consumer without an inbox."""
    sessions = async_sessionmaker(engine)
    while (delivery := await subscriber.receive(wait=False)) is not None:
        assert isinstance(delivery.message, Message)  # noqa: S101 - the demo sends nothing else
        async with sessions() as session, session.begin():
            await shop.send_receipt(session, decode(shop.OrderConfirmed, delivery.message.payload))
        tally.deliveries += 1
        await delivery.ack()


def _print(tally: Tally, *, with_inbox: bool) -> None:
    """Print the counts, the verdict, and the next commands to type."""
    console = Console(highlight=False)
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
    console.print()
    console.print(table)
    if tally.is_right:
        console.print("Every committed order has exactly one effect.", style="green")
    else:
        counted = f"{tally.lost} lost, {tally.doubled} doubled, {tally.invented} invented"
        console.print(f"Effects: {counted}." + ("" if with_inbox else " That is what the inbox is for."), style="red")
    console.print(NEXT, soft_wrap=True)
