"""Relays on PostgreSQL with a publisher that notes what arrives where, and that fails when it is told to."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import Message, event, outbox, tables
from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Verdict
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.relay.claim import Claimer
from outboxkit.relay.decisions import Settlement
from outboxkit.relay.pipeline import Pipeline
from outboxkit.relay.report import RelayMeasurements
from outboxkit.relay.settle import SettlementWriter
from outboxkit.retry import Backoff
from tests.support.tcp_proxy import TcpProxy

MILLISECOND = timedelta(milliseconds=1)
QUICK = Backoff(base=5 * MILLISECOND, cap=40 * MILLISECOND, minimum=MILLISECOND)
PATIENT = RelayPolicy(max_attempts=1_000_000, backoffs=dict.fromkeys((Verdict.UNROUTABLE, Verdict.REJECTED), QUICK))
NOW = datetime.now(UTC)
FILL = """
INSERT INTO outboxkit_outbox (message_id, type, key, payload, headers, content_type, created_at)
SELECT 'm' || n, 'T', 'k' || n % nullif(CAST(:keys AS int), 0), '{}', '{}', 'application/json', now()
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) n ORDER BY n
"""


def fill(engine: Engine, last: int, *, keys: int, first: int = 1) -> None:
    """Messages m<first>…m<last>, of so many keys in turn, or of none."""
    with engine.begin() as connection:
        connection.execute(text(FILL), {"first": first, "last": last, "keys": keys})


def number(message_id: str) -> int:
    """The place of a message of `fill`."""
    return int(message_id[1:])


class Recorder(Publisher):
    """A publisher, for any number of relays at once, that keeps what arrived in the order in which it did.

    As the seam asks, a message is `NOT_SENT` once an earlier one of its key in the batch has failed.
    """

    def __init__(self, answer: Callable[[Message], Verdict] = lambda message: Verdict.CONFIRMED) -> None:
        self.answer = answer
        self.arrived: list[str] = []
        self.keys: dict[str, str | None] = {}
        self.verdicts: Counter[Verdict] = Counter()

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        receipts, stuck = [], set()
        for message in batch:
            await asyncio.sleep(0)
            verdict = Verdict.NOT_SENT if message.key in stuck else self.answer(message)
            if verdict is Verdict.CONFIRMED:
                self.note(message)
            elif message.key is not None:
                stuck.add(message.key)
            self.verdicts[verdict] += 1
            receipts.append(CONFIRMED if verdict is Verdict.CONFIRMED else Receipt(verdict, "told so"))
        return receipts

    def note(self, message: Message) -> None:
        self.arrived.append(message.id)
        self.keys[message.id] = message.key

    def firsts(self) -> dict[str | None, list[str]]:
        """For each key the messages in the order of their first appearance."""
        found = defaultdict(list)
        for message_id in dict.fromkeys(self.arrived):
            found[self.keys[message_id]].append(message_id)
        return found

    def assert_in_order(self) -> None:
        for key, ids in self.firsts().items():
            assert ids == sorted(ids, key=number), f"{key} is not in order"


def at_random(seed: int, share: float, recorder: list[Recorder]) -> Callable[[Message], Verdict]:
    """Now and then a failure, or no answer, in which case the message has sometimes arrived."""
    chance = random.Random(seed)

    def answer(message: Message) -> Verdict:
        if chance.random() >= share:
            return Verdict.CONFIRMED
        verdict = chance.choice([Verdict.UNROUTABLE, Verdict.REJECTED, Verdict.UNKNOWN])
        if verdict is Verdict.UNKNOWN and chance.random() < 0.5:
            recorder[0].note(message)
        return verdict

    return answer


@asynccontextmanager
async def running(*relays: Relay) -> AsyncIterator[asyncio.Event]:
    """The relays run meanwhile; what one of them raises is raised at the end."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(relay.run(stop)) for relay in relays]
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def relay(engine: AsyncEngine, publisher: Any, *, batch_size: int = 50, policy: RelayPolicy = PATIENT) -> Relay:
    return Relay(engine, publisher, batch_size=batch_size, policy=policy, poll_interval=5 * MILLISECOND)


def count(engine: Engine, *where: Any) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(tables.outbox).where(*where)).scalar_one()


def rows(engine: Engine, table: Any = tables.outbox) -> Sequence[Any]:
    with engine.connect() as connection:
        return connection.execute(select(table).order_by(*table.primary_key.columns)).all()


@event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


def add(engine: Engine, *numbers: int, **options: Any) -> list[str]:
    with Session(engine) as session, session.begin():
        return [message.id for message in outbox.add_all(session, [Ordered(n) for n in numbers], **options)]


def pipeline(
    engine: AsyncEngine,
    publisher: Any,
    *,
    batch_size: int = 500,
    policy: RelayPolicy | None = None,
    on_settled: Callable[[Settlement], None] = lambda _: None,
) -> Pipeline:
    """Of a relay whose clock stands at `NOW`."""
    batches, settling = Claimer(engine, batch_size), SettlementWriter(engine.dialect.name, keep=False)
    return Pipeline(
        batches,
        publisher,
        settling,
        policy=policy or RelayPolicy(),
        on_settled=on_settled,
        clock=lambda: NOW,
        measurements=RelayMeasurements(publisher, DEFAULT_DESTINATION),
    )


async def turn(
    engine: AsyncEngine, publisher: Any, *, as_of: datetime = NOW, policy: RelayPolicy | None = None
) -> list[Any]:
    """One batch; returns what was settled."""
    settled: list[Settlement] = []
    async with pipeline(engine, publisher, policy=policy, on_settled=settled.append) as turns:
        await turns.turn(as_of, asyncio.Event())
    return settled


@asynccontextmanager
async def behind_proxy(url: str) -> AsyncIterator[tuple[TcpProxy, str]]:
    target = make_url(url)
    proxy = TcpProxy(target.host or "localhost", target.port or 0)
    try:
        yield proxy, target.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    finally:
        await asyncio.to_thread(proxy.close)
