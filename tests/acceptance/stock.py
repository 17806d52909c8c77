"""A depot from outside: parcels that arrive, and what its database and its broker hold."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import aio_pika
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from outboxkit import ids, outbox, tables
from outboxkit.brokers.rabbitmq.topology import delay_name
from outboxkit.runtime.settings import parse_duration
from tests.acceptance.deployment import Deployment
from tests.acceptance.depot import Booking, ParcelArrived, Tables
from tests.acceptance.worker_process import WorkerProcess
from tests.support.delays import DELAYS_TEXT
from tests.support.plain_client import PlainClient, keyed
from tests.support.polling import eventually

DEPOT = "tests.acceptance.depot"
ARRIVED, BOOKED = "ParcelArrived", "ParcelBooked"
WAYS = {"singly": {}, "together": {"DEPOT_TOGETHER": "yes"}, "in the loop": {"DEPOT_IN_LOOP": "yes"}}
"""The kinds of plain handlers: in threads with a transaction each, or many in one; a transaction each in the loop."""
EVERY_WAY = ["singly", "together", pytest.param("in the loop", marks=pytest.mark.night)]
AT_ONCE = 500


@dataclass(frozen=True)
class Parcel:
    """One message of a client that knows nothing of outboxkit, but for the headers with the key and its bucket."""

    number: int
    fate: str = ""
    weight: object = 1
    key: str | None = None
    id: str = field(default_factory=ids.new)
    timestamp: datetime | None = None

    def on_the_wire(self) -> aio_pika.Message:
        """Its body and its properties."""
        return aio_pika.Message(
            json.dumps({"number": self.number, "weight": self.weight, "fate": self.fate, "place": self.id}).encode(),
            message_id=self.id,
            type=ARRIVED,
            headers={} if self.key is None else keyed(self.key),
            timestamp=self.timestamp,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )


class Stock:
    """Starts `outboxkit consume` for the depot, and looks at what it has done."""

    def __init__(self, deployment: Deployment, *, delays: str = DELAYS_TEXT) -> None:
        deployment.programs = "outboxkit"
        deployment.environment["OUTBOXKIT_RETRY_DELAYS"] = delays
        self.deployment = deployment
        self._steps = delays.split(",")
        Tables.metadata.create_all(deployment.engine)

    def declare(self, *options: str, **settings: str) -> None:
        """Have the queue, and all that belongs to it, without a consumer."""
        drained = self.drain(*options, **settings)
        assert drained == "nothing to do\n", drained

    def consume(self, *options: str, **settings: str) -> WorkerProcess:
        """Start a consumer."""
        settings = {"OUTBOXKIT_LOG_LEVEL": "info"} | settings
        return self.deployment.start("consumer", DEPOT, *options, **settings)

    def drain(self, *options: str, **settings: str) -> str:
        """Have everything handled that is in the queue; what the command says about it."""
        settings = {"OUTBOXKIT_LOG_LEVEL": "error"} | settings
        drained = self.deployment.outboxkit("consume", DEPOT, "--drain", *options, **settings)
        assert drained.returncode == 0, drained.stderr
        return drained.stdout

    def arrive(self, parcels: Sequence[Parcel]) -> None:
        """Publish them in this order; the broker has confirmed each."""
        asyncio.run(_publish(self.deployment.broker, parcels))

    def add(self, parcels: Sequence[Parcel]) -> None:
        """Add them to the outbox in this order, in one transaction."""
        with Session(self.deployment.engine) as session, session.begin():
            for each in parcels:
                outbox.add(session, ParcelArrived(each.number, fate=each.fate), key=each.key)

    def supervise(self, done: Callable[[], bool], **settings: str) -> int:
        """Start a consumer, and another one whenever it has ended, until this is so; then stop it.

        Returns how many have ended.
        """
        started = [self.consume(**settings)]

        def has_come() -> bool:
            if not started[-1].is_running:
                started.append(self.consume(**settings))
            return done()

        eventually(has_come, seconds=120)
        assert started[-1].stop() == 0, started[-1].log.read_text()
        return len(started) - 1

    def booked(self) -> Counter[int]:
        """How often each parcel was booked."""
        with Session(self.deployment.engine) as session:
            return Counter(session.scalars(select(Booking.number)))

    def booked_by_key(self) -> dict[str, list[int]]:
        """The numbers of each key, in the order in which they were booked."""
        found: dict[str, list[int]] = {}
        with Session(self.deployment.engine) as session:
            for key, number in session.execute(select(Booking.key, Booking.number).order_by(Booking.id)):
                found.setdefault(key, []).append(number)
        return found

    def told(self) -> Counter[int]:
        """How often the depot has told others of each parcel: what is in its outbox."""
        return Counter(json.loads(row.payload)["number"] for row in self.deployment.outbox_rows() if row.type == BOOKED)

    def given_up(self) -> dict[str, str]:
        """The reason of each message that is among the open dead letters."""
        return {row.message_id: row.reason for row in self.deployment.dead_letters() if row.resolution is None}

    def suspected(self) -> int:
        """Messages of which a start or a failure is recorded."""
        with self.deployment.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(tables.attempt)).scalar_one()

    def depths(self) -> dict[str, int]:
        """How many messages are ready in the queue, and in those beside it."""
        queue = self.deployment.broker.queue
        names = [queue, f"{queue}.dead", *(delay_name(parse_duration(step)) for step in self._steps)]
        return {name.removeprefix(queue): self.deployment.broker.depth(name) for name in names}

    def assert_nothing_is_left(self) -> None:
        """No message in any queue, nothing recorded about one."""
        depths = eventually(self.depths, lambda found: not any(found.values()))
        assert depths == dict.fromkeys(depths, 0)
        assert self.suspected() == 0


async def _publish(broker: PlainClient, parcels: Sequence[Parcel]) -> None:
    connection = await aio_pika.connect(broker.url)
    async with connection:
        exchange = await (await connection.channel()).get_exchange(broker.exchange, ensure=False)
        for first in range(0, len(parcels), AT_ONCE):
            some = parcels[first : first + AT_ONCE]
            await asyncio.gather(*(exchange.publish(parcel.on_the_wire(), ARRIVED) for parcel in some))
