"""The properties of a delivery, written again for a copy of it. Pure.

They are copied byte by byte: a header of any type and name stays what it was, whatever the client library can write.
"""

from collections.abc import Mapping
from struct import Struct, error
from typing import Any

from pamqp import encode

from outboxkit.brokers.marks import OWN, Marks
from outboxkit.brokers.rabbitmq import properties
from outboxkit.brokers.rabbitmq.frames import HEADER_OVERHEAD, Unwritable
from outboxkit.brokers.rabbitmq.wire import BROKERS_OWN, CAUSATION, KEY, PERSISTENT, TOPIC

ROUTES_MORE = ("CC", "BCC")
"""Headers by which a publisher sends to further queues: it has happened, and would again at each copy."""
_LEFT_OUT = ("expiration", "user_id", "cluster_id")
"""The expiry was meant for the first queue: it would cut the wait in another one short, and the message be dropped. The
user id is compared with ours by the broker, and AMQP 0-9-1 no longer has the cluster id."""
_KEPT_LAST = (KEY, CAUSATION)
_LONG = Struct(">I")


def rewritten(flags: int, written: bytes, marks: Marks, topic: str, *, room: int) -> tuple[int, bytes, list[str]]:
    """The flags and the bytes of a copy's properties, and the names of headers that had to be left out.

    All is kept but what would lose the copy; the marks and the first topic are added. If that is more than `room`, the
    most that a frame holds, the sender's largest headers are left out.

    Raises:
        Unwritable: it is too much without them.
    """
    parts = properties.parts(flags, written)
    kept = [
        (name, field)
        for name, field in properties.fields(parts.pop("headers", b""))
        if name in _KEPT_LAST or not (name.startswith((OWN, *BROKERS_OWN)) or name in ROUTES_MORE)
    ]
    ours = _table({TOPIC: topic, **marks.headers()})
    parts = {name: part for name, part in parts.items() if name not in _LEFT_OUT}
    parts["delivery_mode"] = bytes((PERSISTENT,))
    excess = HEADER_OVERHEAD + _LONG.size + len(ours) - room
    excess += sum(map(len, parts.values())) + sum(len(field) for _, field in kept)
    left_out: dict[int, str] = {}
    for index in sorted(range(len(kept)), key=lambda index: (kept[index][0] in _KEPT_LAST, -len(kept[index][1]))):
        if excess <= 0:
            break
        excess -= len(kept[index][1])
        left_out[index] = kept[index][0]
    if excess > 0:
        raise Unwritable(f"its properties and marks are {excess} bytes more than a frame holds")
    table = b"".join(field for index, (_, field) in enumerate(kept) if index not in left_out) + ours
    parts["headers"] = _LONG.pack(len(table)) + table
    return *properties.joined(parts), list(left_out.values())


def _table(headers: Mapping[str, Any]) -> bytes:
    """These headers as fields of a table, without its size."""
    try:
        return encode.field_table(dict(headers))[_LONG.size :]
    except (ValueError, TypeError, OverflowError, error) as cause:
        raise Unwritable(f"its marks cannot be written: {' '.join(str(cause).split())}") from cause
