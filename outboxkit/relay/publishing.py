"""Publishing the rows of a batch, whatever is in them: one that cannot be published stops no other one."""

import asyncio
from collections.abc import Sequence

import structlog

from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Verdict
from outboxkit.errors import BrokerUnavailable
from outboxkit.failures import first_line
from outboxkit.message import Message
from outboxkit.outage import is_surprise
from outboxkit.relay.rows import Claimed


class Publishing:
    """Asks a publisher for receipts, and finds the message at which the publisher itself fails.

    Args:
        publisher: where messages go.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    async def connect(self) -> None:
        """Be ready to publish.

        Raises:
            BrokerUnavailable: the broker cannot be reached now.
        """
        try:
            await self._publisher.connect()
        except asyncio.CancelledError as error:
            raise _unless_asked(error) from error

    async def receipts(self, rows: Sequence[Claimed]) -> list[Receipt]:
        """A receipt for each row: those that cannot be read are refused, and what is behind them by key is held.

        Raises:
            BrokerUnavailable: nothing got an answer, or the publisher fails whatever it is given.
        """
        receipts: list[Receipt | None] = [None] * len(rows)
        stuck: set[str] = set()
        for index, row in enumerate(rows if any(row.unreadable for row in rows) else ()):
            if row.message.key is not None and row.message.key in stuck:
                receipts[index] = _held(row.message)
            elif row.unreadable is not None:
                receipts[index] = Receipt(Verdict.REJECTED, row.unreadable, final=True)
                if row.message.key is not None:
                    stuck.add(row.message.key)
        answers = iter(
            await self._answers([row.message for row, known in zip(rows, receipts, strict=True) if not known])
        )
        return [known or next(answers) for known in receipts]

    async def _answers(self, messages: Sequence[Message]) -> list[Receipt]:
        failures: dict[int, Exception] = {}
        receipts = await self._publish(messages, 0, failures) if messages else []
        if not failures:
            return receipts
        (first, error), *_ = failures.items()
        self._log.error("the publisher failed", message_id=messages[first].id, error=first_line(error), exc_info=error)
        if CONFIRMED.verdict not in {receipt.verdict for receipt in receipts}:
            raise BrokerUnavailable(f"the publisher failed: {first_line(error)}") from error
        for index, each in failures.items():
            receipts[index] = Receipt(Verdict.REJECTED, f"the publisher failed at it: {first_line(each)}")
        return receipts

    async def _ask(self, messages: Sequence[Message]) -> list[Receipt]:
        answers = list(await self._publisher.publish(messages)) if messages else []
        if len(answers) != len(messages):
            raise RuntimeError(f"{len(answers)} receipts for {len(messages)} messages")
        return answers

    async def _publish(
        self,
        messages: Sequence[Message],
        start: int,
        failures: dict[int, Exception],
        stuck: frozenset[str] = frozenset(),
    ) -> list[Receipt]:
        """Publish what is not behind a failed one of its key; where that fails as a whole, one half after the other."""
        free = [message for message in messages if message.key not in stuck]
        try:
            answers = await self._ask(free)
        except BrokerUnavailable:
            raise
        except asyncio.CancelledError as error:
            raise _unless_asked(error) from error
        except Exception as error:  # noqa: BLE001 - a publisher may be anybody's
            await self._publisher.close()
            await self.connect()
            if len(messages) == 1:
                failures[start] = error
                return [Receipt(Verdict.UNKNOWN, first_line(error))]
            middle = len(messages) // 2
            first = await self._publish(messages[:middle], start, failures, stuck)
            failed = zip(messages, first, strict=False)
            stuck |= {
                message.key for message, receipt in failed if message.key and receipt.verdict is not CONFIRMED.verdict
            }
            return first + await self._publish(messages[middle:], start + middle, failures, stuck)
        given = iter(answers)
        return [_held(message) if message.key in stuck else next(given) for message in messages]


def _held(message: Message) -> Receipt:
    return Receipt(Verdict.NOT_SENT, f"an earlier message of key {message.key!r} has failed")


def _unless_asked(error: asyncio.CancelledError) -> BaseException:
    """The error itself where this task is to end; if nobody asked, a library has let go of a connection."""
    if is_surprise(error):
        return BrokerUnavailable("the broker's client cancelled what it was asked for")
    return error
