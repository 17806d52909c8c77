"""A broker for a shop that has none: the relay hands each message to its handlers, in this process.

Not `memory://`, which forgets its queues with the process: a message stays in the outbox until its handlers have
committed.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outboxkit import Message, Reject, Retry, inbox
from outboxkit.brokers import CONFIRMED, Receipt, Verdict


class AtOnce:
    """A `Publisher` for a relay: confirmed is what every handler of the message has handled."""

    def __init__(self, engine: AsyncEngine, handlers: Sequence[inbox.Handler]) -> None:
        self._engine = engine
        self._handlers = handlers

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Sequence[Message]) -> Sequence[Receipt]:
        failed: set[str | None] = set()
        receipts = []
        for message in batch:
            held = message.key is not None and message.key in failed
            receipts.append(Receipt(Verdict.HELD) if held else await self._handle(message))
            if receipts[-1] is not CONFIRMED:
                failed.add(message.key)
        return receipts

    async def _handle(self, message: Message) -> Receipt:
        answer = CONFIRMED
        for handler in self._handlers:
            if handler.message_type != message.type:
                continue
            try:
                async with AsyncSession(self._engine) as session, session.begin():
                    await session.run_sync(inbox.run_once, message, handler)
            except Retry as asked:
                answer = Receipt(Verdict.POSTPONED, asked.reason, after=asked.after)
            except Reject as refused:
                answer = Receipt(Verdict.REJECTED, refused.reason, final=True)
            except Exception as error:  # noqa: BLE001 - it is the message's failure, whatever it is
                answer = Receipt(Verdict.REJECTED, f"{handler.name}: {error!r}")
        return answer
