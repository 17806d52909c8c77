"""Acks of one channel's deliveries, in as few frames as possible (AMQP 0-9-1, section 1.8.3.13). Pure."""

from struct import Struct

from outboxkit.brokers.rabbitmq.encode import BASIC, END, METHOD

ACK, NACK, REQUEUE = 80, 120, 2
_ANSWER = Struct(">BHIHHQBB")
_SIZE = 13


class Acks:
    """The delivery tags of a channel, which count up from 1, and which of them are acked or nacked.

    Attributes:
        unacked_bytes: the total size of the deliveries that are neither acked nor nacked.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._lowest, self._highest = 1, 0
        self._answered: set[int] = set()
        self._unsent: list[int] = []
        self._sizes: dict[int, int] = {}
        self.unacked_bytes = 0

    @property
    def unacked(self) -> int:
        """The number of deliveries that are neither acked nor nacked."""
        return self._highest - (self._lowest - 1) - len(self._answered)

    def is_unacked(self, tag: int) -> bool:
        """Whether the delivery with this tag has come, and is neither acked nor nacked."""
        return tag in self._sizes

    def record_delivery(self, tag: int, size: int) -> None:
        """Add the delivery with this tag, of so many bytes."""
        self._highest = tag
        self._sizes[tag] = size
        self.unacked_bytes += size

    def ack(self, tag: int) -> None:
        """Have the next `take_frames` ack this delivery. Does nothing if it was acked or nacked before."""
        if self._answer(tag):
            self._unsent.append(tag)

    def nack(self, tag: int) -> bytes:
        """The frame that requeues this delivery; empty if it was acked or nacked before.

        It must be sent before the next frames of `take_frames`: one of them may ack everything up to a later tag.
        """
        return self._frame(NACK, tag, REQUEUE) if self._answer(tag) else b""

    def take_frames(self) -> bytes:
        """The frames that ack the deliveries acked since the last call.

        One frame with `multiple` covers all tags below the first unacked delivery. The others have a frame each.
        """
        tags, self._unsent = self._unsent, []
        lowest = self._lowest
        while lowest in self._answered:
            self._answered.discard(lowest)
            lowest += 1
        self._lowest = lowest
        below = [tag for tag in tags if tag < lowest]
        frames = [self._frame(ACK, max(below), len(below) > 1)] if below else []
        if len(below) < len(tags):
            frames += [self._frame(ACK, tag, 0) for tag in sorted(tags) if tag > lowest]
        return b"".join(frames)

    def _answer(self, tag: int) -> bool:
        if tag < self._lowest or tag in self._answered:
            return False
        self._answered.add(tag)
        self.unacked_bytes -= self._sizes.pop(tag, 0)
        return True

    def _frame(self, method: int, tag: int, bits: int) -> bytes:
        return _ANSWER.pack(METHOD, self._channel, _SIZE, BASIC, method, tag, bits, END)
