"""What the broker itself can do: frames that were built beforehand, written to one blocking socket, all confirmed.

No message is built, no row read and nothing decided while the clock runs; a relay cannot be faster. Every message is
persistent, mandatory and confirmed and has an id of its own, and at most `WINDOW` wait for their confirms.
"""

import socket
import struct
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pamqp import body, commands, frame, header

from outboxkit import ids

EXCHANGE, TYPE = "outboxkit", "Benchmark"
WINDOW = 1000
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

_FRAME_HEAD = struct.Struct(">BHI")
_ANSWER = struct.Struct(">HHQB")
_CHANNEL, _METHOD, _END = 1, 1, 1
_ACK, _RETURN, _CLASS_BASIC = 80, 50, 60


class RawPublisher:
    """One connection with one confirming channel, and the queue that it publishes to.

    Args:
        url: `amqp://user:password@host:port/vhost`.
        queue: bound to `outboxkit` by `TYPE`; made here, and deleted at the end.
        arguments: of the queue, such as its type; None where it exists.
    """

    def __init__(self, url: str, queue: str, arguments: dict[str, Any] | None) -> None:
        self._queue = queue
        self._unread = bytearray()
        self._tag = self._floor = 0
        self._above: set[int] = set()
        self._socket = self._open(url)
        self._ask(commands.Channel.Open())
        self._ask(commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="topic", durable=True))
        self._ask(commands.Queue.Declare(queue=queue, passive=arguments is None, durable=True, arguments=arguments))
        self._ask(commands.Queue.Bind(queue=queue, exchange=EXCHANGE, routing_key=TYPE))
        self._ask(commands.Confirm.Select())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._ask(commands.Queue.Delete(queue=self._queue))
        self._socket.close()

    def build(self, count: int, size: int) -> list[bytes]:
        """The frames of `count` messages of `size` bytes, in pieces of half a window each."""
        content = b'{"pad":"' + b"x" * max(size - 10, 0) + b'"}'
        half = WINDOW // 2
        return [
            b"".join(self._frames(content) for _ in range(min(half, count - start))) for start in range(0, count, half)
        ]

    def publish(self, pieces: list[bytes], count: int) -> float:
        """Write the pieces and await every confirm; the seconds that it took."""
        half, first = WINDOW // 2, self._tag
        started = time.perf_counter()
        for piece in pieces:
            self._await(self._tag - half)
            self._socket.sendall(piece)
            self._tag = min(self._tag + half, first + count)
        self._await(self._tag)
        return time.perf_counter() - started

    def depth(self) -> int:
        """How many messages are ready in the queue."""
        return int(self._ask(commands.Queue.Declare(queue=self._queue, passive=True)).message_count)

    def discard(self, *queues: str) -> None:
        """Delete queues beside its own."""
        for queue in queues:
            self._ask(commands.Queue.Delete(queue=queue))

    def purge(self) -> None:
        """Empty the queue."""
        self._ask(commands.Queue.Purge(queue=self._queue))

    def _frames(self, content: bytes) -> bytes:
        properties = commands.Basic.Properties(
            content_type="application/json",
            delivery_mode=2,
            message_id=ids.new(),
            message_type=TYPE,
            headers={"outboxkit-key": "key-1", "traceparent": TRACE},
        )
        method = commands.Basic.Publish(exchange=EXCHANGE, routing_key=TYPE, mandatory=True)
        room = self._frame_max - 8
        parts = [
            frame.marshal(method, _CHANNEL),
            frame.marshal(header.ContentHeader(0, len(content), properties), _CHANNEL),
        ]
        pieces = (content[start : start + room] for start in range(0, len(content), room))
        return b"".join([*parts, *(frame.marshal(body.ContentBody(piece), _CHANNEL) for piece in pieces)])

    def _open(self, url: str) -> socket.socket:
        parts = urlsplit(url)
        opened = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout=60)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = opened
        opened.sendall(b"AMQP\x00\x00\x09\x01")
        self._method()
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        tune = self._ask(commands.Connection.StartOk({}, "PLAIN", login, "en_US"), channel=0)
        self._frame_max = tune.frame_max
        opened.sendall(frame.marshal(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0))
        self._ask(commands.Connection.Open(unquote(parts.path[1:]) or "/"), channel=0)
        return opened

    def _ask(self, method: Any, *, channel: int = _CHANNEL) -> Any:
        self._socket.sendall(frame.marshal(method, channel))
        return self._method()

    def _method(self) -> Any:
        _, _, answer = frame.unmarshal(self._next())
        if isinstance(answer, commands.Channel.Close | commands.Connection.Close):
            raise RuntimeError(f"the broker refuses: {answer.reply_text}")  # noqa: TRY004 - not its type is wrong
        return answer

    def _await(self, tag: int) -> None:
        """Read until everything up to this delivery tag is confirmed."""
        while self._floor < tag:
            found = self._next()
            kind, number, confirmed, several = _ANSWER.unpack_from(found, _FRAME_HEAD.size)
            if (kind, number) != (_CLASS_BASIC, _ACK):
                what = "returned" if number == _RETURN else "refused"
                raise RuntimeError(f"the broker {what} a message: {frame.unmarshal(found)[2]}")
            if several & 1:
                self._floor = max(self._floor, confirmed)
            else:
                self._above.add(confirmed)
            while self._floor + 1 in self._above:
                self._floor += 1
                self._above.discard(self._floor)

    def _next(self) -> bytes:
        """The next frame, whole."""
        while True:
            if len(self._unread) >= _FRAME_HEAD.size:
                size = _FRAME_HEAD.size + _FRAME_HEAD.unpack_from(self._unread)[2] + _END
                if len(self._unread) >= size:
                    found = bytes(self._unread[:size])
                    del self._unread[:size]
                    return found
            received = self._socket.recv(1 << 18)
            if not received:
                raise RuntimeError("the broker closed the connection")
            self._unread += received
