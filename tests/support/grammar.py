"""A grammar of what strangers send: AMQP properties of every field type, envelopes, bodies, HTTP, texts of settings.

Everything follows from the `random.Random` that is given, so that Hypothesis, or a seed, has the same input again.
"""

import gzip
import json
import random
import struct
from typing import Any

from outboxkit.codec.envelopes import Envelope

RESERVED = (
    *("outboxkit-attempt", "outboxkit-first-failed-at", "outboxkit-handlers", "outboxkit-accepted-at", "outboxkit-key"),
    *("outboxkit-bucket", "outboxkit-causation-id", "outboxkit-topic", "outboxkit-version", "outboxkit-absent"),
    *("outboxkit-replayed", "outboxkit-aliases", "outboxkit-type", "x-death", "x-delivery-count", "traceparent"),
    *("tracestate", "cloudEvents_specversion", "cloudEvents_id", "ce-source", "task", "id", "a"),
)
TEXTS = ("", "a\0b", "x" * 63, "x" * 64, "x" * 255, "é" * 127, "\x1b[31m", "a\nb", '{"', "0", "-1", "9" * 400, "🐇")
NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63), 253402300799000, 253402300800000, 10**400)
FIELD_TYPES = b"tbBsuIilLfdDTVSxAF\0"
_FIXED = dict(zip(b"tbBsuIilLfdDTV\0", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0, 0), strict=True))


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def short(text: bytes) -> bytes:
    return bytes((len(text[:255]),)) + text[:255]


class Grammar:
    """What a stranger may send, by chance.

    Args:
        chance: the random numbers.
        accepted: only what RabbitMQ accepts: it closes the connection of a client that sends anything else.
    """

    def __init__(self, chance: random.Random, *, accepted: bool = False) -> None:
        self.chance, self.accepted = chance, accepted

    def one_in(self, count: int) -> bool:
        return self.chance.randrange(count) == 0

    def text(self) -> str:
        if self.one_in(2):
            return self.chance.choice(TEXTS)
        return "".join(
            map(chr, self.chance.choices((*range(1, 128), 233, 0x202E, 0x10FFFF), k=self.chance.randrange(12)))
        )

    def raw(self, most: int = 12) -> bytes:
        return bytes(self.chance.choices(range(256), k=self.chance.randrange(most)))

    def value(self, depth: int = 4) -> bytes:
        """A value of a table: its type and its bytes."""
        kind = self.chance.choice(FIELD_TYPES)
        if kind in b"fd" and self.accepted:  # RabbitMQ has no NaN and no infinity
            return bytes((kind,)) + (struct.pack(">f", 1.5) if kind == ord("f") else struct.pack(">d", 0.1))
        if kind == 0 and self.accepted:
            kind = ord("V")
        if kind in _FIXED:
            size = _FIXED[kind]
            return bytes((kind,)) + self.chance.choice((b"\0", b"\xff", b"\x7f", self.raw() or b"\1"))[:1] * size
        if kind == ord("S"):
            return b"S" + sized(self.text().encode() if self.one_in(2) else self.raw())
        if kind == ord("x"):
            return b"x" + sized(self.raw())
        if self.one_in(12) and not self.accepted:
            depth = 40
        many = range(self.chance.randrange(4)) if depth > 0 else range(0)
        if depth > 4:
            return b"A" + sized(self._nested(depth))
        if kind == ord("A"):
            return b"A" + sized(b"".join(self.value(depth - 1) for _ in many))
        return b"F" + sized(b"".join(self.name() + self.value(depth - 1) for _ in many))

    def _nested(self, depth: int) -> bytes:
        inner = self.value(0)
        for _ in range(self.chance.choice((depth, 31, 32, 33)) - 1):
            inner = b"A" + sized(inner)
        return inner

    def name(self) -> bytes:
        """The name of a field."""
        if self.one_in(2):
            return short(self.chance.choice(RESERVED).encode())
        text = short(self.text().encode()) if self.accepted or self.one_in(2) else short(self.raw(40))
        return text[:1] + text[1:] if len(text) < 128 or not self.accepted else short(text[1:101])

    def table(self) -> bytes:
        return sized(b"".join(self.name() + self.value() for _ in range(self.chance.randrange(7))))

    def properties(self, **fixed: bytes) -> tuple[int, bytes]:
        """The flags and the bytes of properties. `message_id` and `type` may be given."""
        flags, data = 0, b""
        for bit in range(15, 1, -1):
            flag = 1 << bit
            given = fixed.get({0x0080: "message_id", 0x0020: "type"}.get(flag, ""))
            if given is None and self.one_in(2):
                continue
            flags |= flag
            if given is not None:
                data += short(given)
            elif flag == 0x2000:
                data += self.table()
            elif flag == 0x1000 and self.accepted:
                data += self.chance.choice((b"\1", b"\2"))
            elif flag in (0x1000, 0x0800):
                data += bytes((self.chance.choice((0, 1, 2, 9, 255)),))
            elif flag == 0x0040:
                data += struct.pack(">Q", self.chance.choice((0, 1, 1772600767, 1772600767500, 2**62, 2**64 - 1)))
            elif self.accepted and flag in (0x0100, 0x0010):  # expiration, user_id: the broker checks them
                flags ^= flag
            else:
                data += short(self._property(flag))
        return flags, data

    def _property(self, flag: int) -> bytes:
        if flag == 0x4000 and self.one_in(2):
            return self.chance.choice((b"gzip", b"zstd", b"br", b"utf-8", b"x-gzip", b" GZIP "))
        if flag == 0x8000 and self.one_in(2):
            return self.chance.choice((b"application/json", b"application/cloudevents+json", b"text/plain"))
        return self.text().encode() if self.accepted or self.one_in(2) else self.raw()

    def spoiled(self, data: bytes) -> bytes:
        """The same bytes with an accident: cut off, one changed, some put in or taken out."""
        at = self.chance.randrange(len(data) + 1)
        return self.chance.choice(
            (data, data[:at], data[:at] + self.raw(3) + data[at + 1 :], data[:at] + self.raw() + data[at:], data[at:])
        )

    def json(self, depth: int = 3) -> Any:
        """A JSON value, also of numbers that no column holds."""
        kind = self.chance.randrange(8 if depth else 6)
        if kind < 2:
            return self.text()
        if kind < 4:
            return self.chance.choice((*NUMBERS, None, True, False, 1.5, 1e308, float("nan"), float("inf")))
        if kind < 6:
            return self.chance.choice(("1.0", "2026-03-01T12:00:00Z", "0001-01-01T00:00:00+14:00", "e30=", {}, []))
        if kind == 6:
            return [self.json(depth - 1) for _ in range(self.chance.randrange(4))]
        return {self.chance.choice(("id", "type", self.text())): self.json(depth - 1) for _ in range(3)}

    def body(self) -> bytes:
        """A body: a document, a document inside documents, compressed or not, or only bytes."""
        kind = self.chance.randrange(6)
        if kind == 0:
            return self.raw(200)
        if kind == 1:
            return b"[" * self.chance.choice((3, 1000, 100_000)) + self.raw(3)
        document = json.dumps(self.json(), ensure_ascii=self.one_in(2)).encode(errors="surrogatepass")
        return self.spoiled(gzip.compress(document, mtime=0)) if kind == 2 else document

    def envelope(self) -> Envelope:
        """An envelope as each known system writes it, with odd attributes."""
        names = ("specversion", "id", "source", "type", "time", "partitionkey", "data", "data_base64", "subject")
        names += ("datacontenttype", "outboxkitid", "dataversion", "correlationid", "traceparent", self.text())
        attributes: dict[str, Any] = {"specversion": "1.0", "id": "A-1", "source": "/s", "type": "T"}
        attributes |= {self.chance.choice(names): self.json() for _ in range(self.chance.randrange(5))}
        for name in ("id", "source", "specversion"):
            if self.one_in(8):
                del attributes[name]
        common: dict[str, Any] = {
            "content_encoding": self.chance.choice((None, None, "gzip", "zstd", "br", "utf-8", self.text())),
            "routing_key": self.text()[:255],
            "type": self.chance.choice((None, self.text())),
            "message_id": self.chance.choice((None, self.text())),
            "limit": 100_000,
        }
        match self.chance.randrange(4):
            case 0:
                prefix = self.chance.choice(("ce-", "cloudEvents_", "cloudEvents:", "CE-"))
                headers = {prefix + name: value for name, value in attributes.items()}
                return Envelope(self.body(), headers, content_type=self.text(), **common)
            case 1:
                document = json.dumps(attributes).encode()
                if common["content_encoding"] == "gzip" and self.one_in(2):
                    document = gzip.compress(document, mtime=0)
                kind = "application/cloudevents+json"
                return Envelope(
                    self.spoiled(document), content_type=kind + self.chance.choice(("", ";", "x")), **common
                )
            case 2:
                return Envelope(json.dumps(attributes).encode(), content_type="text/plain", **common)
            case _:
                headers = {self.chance.choice((*RESERVED, self.text())): self.json() for _ in range(4)}
                return Envelope(self.body(), headers, content_type="application/cloudevents+json", **common)
