"""Publishing the rows of a batch: a message that cannot be published stops no other one."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog

from outboxkit.brokers import CONFIRMED, Publisher, Receipt, Verdict
from outboxkit.brokers.key_gate import KeyGate
from outboxkit.errors import BrokerUnavailable
from outboxkit.errors.failures import first_line, first_line_of
from outboxkit.message import DEFAULT_DESTINATION, Message
from outboxkit.relay.order import ClaimedRow
from outboxkit.runtime.outage import is_unexpected
from outboxkit.telemetry import tracing

LONGEST_AFTER = timedelta(days=365)
"""The maximum of the wait that a publisher may ask for before the next attempt."""


class Publishing:
    """Gets a receipt for each row, and finds the message at which the publisher itself fails.

    Args:
        publisher: the broker's or the destination's.
        destination: whose messages they are, for traces.

    Attributes:
        since: when the current call of the publisher began, by `time.monotonic`; None: there is none.
    """

    def __init__(self, publisher: Publisher, *, destination: str = DEFAULT_DESTINATION) -> None:
        self._publisher = publisher
        self._place = tracing.Place(publisher.system, publisher.exchange or destination)
        self.since: float | None = None
        self._log = structlog.get_logger("outboxkit").bind(process="relay")

    @property
    def is_connected(self) -> bool:
        """Whether `connect` has nothing to do, as far as the publisher tells."""
        return self._publisher.trouble is None

    async def connect(self) -> None:
        """Connect the publisher.

        Raises:
            BrokerUnavailable: the broker cannot be reached now.
        """
        self.since = time.monotonic()
        try:
            await self._publisher.connect()
        except asyncio.CancelledError as error:
            raise _as_outage(error) from error
        finally:
            self.since = None

    async def receipts(self, rows: Sequence[ClaimedRow]) -> list[Receipt]:
        """A receipt for each row. Unreadable rows are rejected, and later ones of their keys are not sent.

        Raises:
            BrokerUnavailable: nothing got an answer, or the publisher fails at every message.
        """
        receipts: list[Receipt | None] = [None] * len(rows)
        gate = KeyGate()
        for index, row in enumerate(rows if any(row.unreadable for row in rows) else ()):
            receipts[index] = gate.refuse(index, row.message)
            if receipts[index] is None and row.unreadable is not None:
                receipts[index] = Receipt(Verdict.REJECTED, row.unreadable, final=True)
                gate.fail(index, row.message)
        sent = [row.message for row, receipt in zip(rows, receipts, strict=True) if receipt is None]
        attempts = ((row.message.id, row.attempts + 1) for row in rows if row.attempts)
        with tracing.sending(sent, self._place, attempts) as span:
            answered = await self._answers(sent)
            span.counts((receipt.verdict for receipt in answered), fine=(CONFIRMED.verdict,))
        answers = iter(answered)
        return [receipt or next(answers) for receipt in receipts]

    async def _answers(self, messages: Sequence[Message]) -> list[Receipt]:
        failures: dict[int, BaseException] = {}
        receipts = await self._publish(messages, 0, failures, KeyGate()) if messages else []
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
        self.since = time.monotonic()
        try:
            answers = list(await self._publisher.publish(messages)) if messages else []
        finally:
            self.since = None
        if len(answers) != len(messages):
            raise RuntimeError(f"{len(answers)} receipts for {len(messages)} messages")
        return [each if each is CONFIRMED else _checked(each) for each in answers]

    async def _publish(
        self, messages: Sequence[Message], start: int, failures: dict[int, BaseException], gate: KeyGate
    ) -> list[Receipt]:
        """Publish the messages that are not behind a failed one of their key. If that fails as a whole, bisect."""
        refused = [gate.refuse(index, message) for index, message in enumerate(messages, start)]
        free = [message for message, receipt in zip(messages, refused, strict=True) if receipt is None]
        try:
            answers = await self._ask(free)
        except BrokerUnavailable:
            raise
        except asyncio.CancelledError as error:
            raise _as_outage(error) from error
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a publisher may be an application's own
            await self._publisher.close()
            await self.connect()
            if len(messages) == 1:
                failures[start] = error
                return [Receipt(Verdict.UNKNOWN, first_line(error))]
            middle = len(messages) // 2
            first = await self._publish(messages[:middle], start, failures, gate)
            for index, receipt in enumerate(first):
                if receipt.verdict is not CONFIRMED.verdict:
                    gate.fail(start + index, messages[index])
            return first + await self._publish(messages[middle:], start + middle, failures, gate)
        receipts = iter(answers)
        return [receipt or next(receipts) for receipt in refused]


def _checked(receipt: Any) -> Receipt:
    """The receipt, if it is one. A publisher may be an application's own, and one wrong receipt must stop no other."""
    if not isinstance(receipt, Receipt) or not isinstance(receipt.verdict, Verdict):
        return Receipt(Verdict.REJECTED, f"the publisher returned {first_line_of(receipt)!r}; a Receipt is accepted")
    after: Any = receipt.after
    if after is None or (isinstance(after, timedelta) and timedelta() < after <= LONGEST_AFTER):
        return receipt
    return replace(receipt, after=LONGEST_AFTER if isinstance(after, timedelta) and after > LONGEST_AFTER else None)


def _as_outage(error: asyncio.CancelledError) -> BaseException:
    """The error itself if this task is to end; otherwise the client library dropped a connection."""
    if is_unexpected(error):
        return BrokerUnavailable("the broker's client library cancelled the call")
    return error
