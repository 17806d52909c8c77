"""Setting messages aside: into the dead letters, in a transaction of its own, and never acked before."""

import asyncio
from collections import Counter
from collections.abc import Mapping

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import statements
from outboxkit.brokers import Delivery
from outboxkit.consumer.decision import Decision, dead_letter
from outboxkit.consumer.lanes import Arrival
from outboxkit.inbox import Outcome
from outboxkit.message import Message
from outboxkit.outage import Outage

Failed = Mapping[str | None, Decision]
"""What was decided for each handler, by its name; under None what concerns the message, whoever handles it."""


class Burial:
    """Writes the dead letters of one queue, counts them and says so."""

    def __init__(self, engine: AsyncEngine, *, queue: str, outage: Outage, outcomes: Counter[Outcome]) -> None:
        self._engine = engine
        self._queue = queue
        self._outage = outage
        self._outcomes = outcomes
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)

    async def bury(self, arrival: Arrival, failed: Failed, stop: asyncio.Event, *, attempts: int) -> bool:
        """Put the message among the dead letters, once for each handler; False where `stop` came during an outage."""
        delivery = arrival.delivery
        rows = [
            dead_letter(
                delivery.message,
                decision,
                queue=self._queue,
                handler=handler,
                attempts=attempts,
                first_failed_at=delivery.marks.first_failed_at or arrival.first_failed_at,
            )
            for handler, decision in failed.items()
        ]

        async def write() -> bool:
            async with self._engine.begin() as connection:
                await connection.execute(statements.dead.bury_once(), rows)
            return True

        if await self._outage.ride_out(write, stop) is None:
            return False
        self._outcomes.update(decision.outcome for decision in failed.values())
        self.warn("message set aside as a dead letter", delivery, failed, attempt=attempts)
        return True

    def warn(self, event: str, delivery: Delivery, failed: Failed, **more: object) -> None:
        """Log what was decided, a line for each handler."""
        message = delivery.message
        for handler, decision in failed.items():
            self._log.warning(
                event,
                message_id=message.id if isinstance(message, Message) else message.message_id,
                type=message.type,
                handler=handler,
                reason=decision.reason,
                error=decision.error,
                **more,
            )
