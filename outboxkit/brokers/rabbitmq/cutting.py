"""The bytes that arrive on a connection, cut into frames (AMQP 0-9-1, section 4.2.3). Pure."""

from collections.abc import Callable
from struct import Struct

from outboxkit.brokers.rabbitmq.frames import BODY, END, FRAME_OVERHEAD, HEADER, METHOD

PAYLOAD = 7
"""Where in a frame its payload begins."""
HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, END))
FRAME_TYPES = (METHOD, HEADER, BODY, HEARTBEAT[0])
_FRAME = Struct(">BHI")

Take = Callable[[int, int, int, bytes, int], bool]
"""Whether a frame is taken: by its kind, its channel, the size of its payload, some bytes and where in them it is."""


class Cutter:
    """Shows whole frames to `take`; those that it does not want are for the client library."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._rest = b""

    def feed(self, arrived: bytes) -> bytes:
        """What of the bytes is for others, whole frames only; the beginning of one is kept until its end arrives."""
        data = self._rest + arrived if self._rest else arrived
        take, frame = self._take, _FRAME.unpack_from
        position, passed, kept, end = 0, 0, [], len(data)
        while end - position >= FRAME_OVERHEAD:
            kind, channel, size = frame(data, position)
            if kind not in FRAME_TYPES:  # no AMQP: the client will say so
                position = end
                break
            after = position + size + FRAME_OVERHEAD
            if after > end:
                break
            if take(kind, channel, size, data, position):
                kept.append(data[passed:position])
                passed = after
            position = after
        kept.append(data[passed:position])
        self._rest = data[position:]
        return b"".join(kept)
