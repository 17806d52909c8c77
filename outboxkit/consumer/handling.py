"""One delivery from its arrival to its ack: each handler in a transaction of its own, the inbox row first."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from outboxkit import inbox, statements
from outboxkit.brokers import Delivery, Malformed
from outboxkit.consumer import decision as decisions
from outboxkit.consumer.decision import Decision, Policy
from outboxkit.inbox import Handler, Outcome
from outboxkit.message import Message
from outboxkit.outage import Clock, Outage, what_is_away

LOST_CONNECTIONS = 5
"""How often one handler may lose a database connection while the database is there, before it is taken as the cause."""

Failed = Mapping[Handler | None, Decision]


class Handling:
    """What a consumer does with one delivery after another; see `Consumer` for the arguments."""

    def __init__(
        self,
        engine: AsyncEngine,
        handlers: Sequence[Handler],
        *,
        queue: str,
        policy: Policy,
        outage: Outage,
        clock: Clock,
    ) -> None:
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            self._by_type.setdefault(handler.message_type, []).append(handler)
        self._queue = queue
        self._policy = policy
        self._outage = outage
        self._clock = clock
        self._log = structlog.get_logger("outboxkit").bind(process="consumer", queue=queue)
        self.outcomes: Counter[Outcome] = Counter()

    async def handle(self, delivery: Delivery, stop: asyncio.Event) -> None:
        """Run the handlers; then ack, or postpone, or set aside and ack. The ack always comes after the commits."""
        message = delivery.message
        if isinstance(message, Malformed):
            return await self._set_aside(delivery, {None: decisions.malformed(message)}, stop)
        handlers = self._by_type.get(message.type)
        if handlers is None:
            return await self._set_aside(delivery, {None: decisions.no_handler(message, sorted(self._by_type))}, stop)
        if inbox.is_stale(message, now=self._clock(), retention=self._policy.retention):
            return await self._set_aside(delivery, {None: decisions.stale(message, self._policy.retention)}, stop)
        failed: dict[Handler | None, Decision] = {}
        for handler in handlers:
            outcome = await self._run(handler, message, delivery.attempt, stop)
            if outcome is None:
                return await delivery.release()
            if isinstance(outcome, Decision):
                failed[handler] = outcome
            else:
                self.outcomes[outcome] += 1
                self._log.debug("delivery", outcome=str(outcome), handler=handler.name, message_id=message.id)
        return await self._conclude(delivery, failed, stop)

    async def _conclude(self, delivery: Delivery, failed: Failed, stop: asyncio.Event) -> None:
        again = [decision for decision in failed.values() if decision.outcome is Outcome.RETRIED]
        if again:
            # A handler that is dead beside one that is retried runs, and dies, again: it is buried once, at the end.
            wanted = min((decision.after for decision in again if decision.after is not None), default=None)
            delay = await delivery.retry(wanted)
            self.outcomes[Outcome.RETRIED] += len(again)
            self._warn("handler failed, will be retried", delivery, failed, after=f"{delay.total_seconds():g}s")
        elif failed:
            await self._set_aside(delivery, failed, stop)
        else:
            await delivery.ack()

    async def _run(
        self, handler: Handler, message: Message, attempt: int, stop: asyncio.Event
    ) -> Outcome | Decision | None:
        """One transaction: the inbox row, the handler, the commit. None where `stop` came during an outage."""
        for _ in range(LOST_CONNECTIONS):
            try:
                async with self._sessions() as session, session.begin():
                    return await session.run_sync(inbox.run_once, message, handler)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is its message's failure
                lost = error
            if what_is_away(lost) != "database":
                break
            await self._outage.ride_out(self._probe, stop)
            if stop.is_set():
                return None
        return decisions.decide(lost, attempt=attempt, max_attempts=self._policy.max_attempts)

    async def _set_aside(self, delivery: Delivery, failed: Failed, stop: asyncio.Event) -> None:
        """Put the message among the dead letters, in a transaction of its own, and only then ack it."""
        rows = [
            decisions.dead_letter(
                delivery.message,
                decision,
                queue=self._queue,
                handler=handler.name if handler else None,
                attempts=delivery.attempt,
            )
            for handler, decision in failed.items()
        ]

        async def bury() -> bool:
            async with self._sessions() as session, session.begin():
                await session.execute(statements.dead.bury(), rows)
            return True

        if await self._outage.ride_out(bury, stop) is None:
            await delivery.release()
            return
        self.outcomes.update(decision.outcome for decision in failed.values())
        self._warn("message set aside as a dead letter", delivery, failed)
        await delivery.ack()

    async def _probe(self) -> None:
        async with self._sessions() as session:
            await session.execute(statements.inbox.record_nothing())

    def _warn(self, event: str, delivery: Delivery, failed: Failed, **more: object) -> None:
        message = delivery.message
        for handler, decision in failed.items():
            self._log.warning(
                event,
                message_id=message.id if isinstance(message, Message) else message.message_id,
                type=message.type,
                handler=handler.name if handler else None,
                attempt=delivery.attempt,
                reason=decision.reason,
                error=decision.error,
                **more,
            )
