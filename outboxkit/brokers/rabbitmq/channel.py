"""A channel in confirm mode on which whole batches are written: the part that speaks to the client library."""

import asyncio

import aio_pika
import aiormq
from aiormq.abc import ChannelFrame

from outboxkit.brokers import Receipt, Verdict
from outboxkit.brokers.rabbitmq import connection
from outboxkit.brokers.rabbitmq.answers import Answers
from outboxkit.brokers.rabbitmq.batch import Batch
from outboxkit.brokers.rabbitmq.confirms import Loss, Tracker
from outboxkit.brokers.rabbitmq.frames import Encoder, Unwritable

WINDOW_BYTES = 256 * 1024
"""Written at once; the next waits until the socket has taken most of it."""
UNCONFIRMED = 4096
"""Messages on their way at the same time, at most."""
UNCONFIRMED_BYTES = 4 * 1024 * 1024
"""The same in bytes, judged by the average message; a single larger one goes alone."""


class ConfirmChannel:
    """One channel, from its opening to its end.

    Attributes:
        tracker: what was answered, and whether the channel still works.
    """

    def __init__(self, wire: aiormq.abc.AbstractChannel, encoder: Encoder, tracker: Tracker, news: asyncio.Event) -> None:
        self._wire = wire
        self._encoder = encoder
        self.tracker = tracker
        self._news = news

    @property
    def is_open(self) -> bool:
        """Whether it can be published on."""
        return self.tracker.lost is None and not self._wire.is_closed

    async def send(self, batch: Batch, wave: list[int]) -> list[int]:
        """Write a wave in windows and await all answers; what was not written when the channel was lost."""
        position, sent_bytes = 0, 0
        while position < len(wave):
            average = sent_bytes / position if position else 0.0
            await self._until(lambda: self._has_room(average))
            if self.tracker.lost is not None:
                break
            self.note_failures(batch)
            written, size = await self._write_window(batch, wave, position)
            position, sent_bytes = written, sent_bytes + size
        await self._until(lambda: not self.tracker.waiting)
        self.note_failures(batch)
        return wave[position:]

    def _has_room(self, average: float) -> bool:
        waiting = self.tracker.waiting
        roomy = waiting < UNCONFIRMED and waiting * average < UNCONFIRMED_BYTES
        return roomy and self.tracker.blocked_by is None
