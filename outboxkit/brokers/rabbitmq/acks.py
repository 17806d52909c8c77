"""Which delivery tags of one channel are settled, and how few frames say so (AMQP 0-9-1, section 1.8.3.13). Pure."""

from struct import Struct

from outboxkit.brokers.rabbitmq.encode import BASIC, END, METHOD

ACK, NACK, REQUEUE = 80, 120, 2
_SETTLE = Struct(">BHIHHQBB")
_SIZE = 13


class Acks:
    """The tags of a channel, which count up from 1 in the order in which deliveries arrive.

    Attributes:
        held: bytes of all that have arrived and are not settled.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._lowest, self._highest = 1, 0
        self._settled: set[int] = set()
        self._waiting: list[int] = []
        self._sizes: dict[int, int] = {}
        self.held = 0

    @property
    def unsettled(self) -> int:
        """How many have arrived and are not settled."""
        return self._highest - (self._lowest - 1) - len(self._settled)

    def arrived(self, tag: int, size: int) -> None:
        """A delivery with this tag has come, of so many bytes."""
        self._highest = tag
        self._sizes[tag] = size
        self.held += size

    def ack(self, tag: int) -> None:
        """It is to be acked with the next `frames`; nothing happens where it is settled already."""
        if self._settle(tag):
            self._waiting.append(tag)

    def nack(self, tag: int) -> bytes:
        """The frame that gives it back; none where it is settled. It must leave before what `frames` returns."""
        return self._frame(NACK, tag, REQUEUE) if self._settle(tag) else b""

    def frames(self) -> bytes:
        """The frames for what was acked since this was last asked.

        One says `multiple`: up to the highest of them below which everything is settled. The others stand alone, since
        between them there are messages that are still being handled.
        """
        waiting, self._waiting = self._waiting, []
        low = self._lowest
        while low in self._settled:
            self._settled.discard(low)
            low += 1
        self._lowest = low
        below = [tag for tag in waiting if tag < low]
        frames = [self._frame(ACK, max(below), len(below) > 1)] if below else []
        if len(below) < len(waiting):
            frames += [self._frame(ACK, tag, 0) for tag in sorted(waiting) if tag > low]
        return b"".join(frames)

    def _settle(self, tag: int) -> bool:
        if tag < self._lowest or tag in self._settled:
            return False
        self._settled.add(tag)
        self.held -= self._sizes.pop(tag, 0)
        return True

    def _frame(self, method: int, tag: int, bits: int) -> bytes:
        return _SETTLE.pack(METHOD, self._channel, _SIZE, BASIC, method, tag, bits, END)
