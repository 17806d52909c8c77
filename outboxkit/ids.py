"""Message ids: time-ordered new ones, and ones derived from the parts that identify an event."""

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID, uuid5

import uuid_utils

IdPart = str | int | UUID | bytes

_USUAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TIMED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAMESPACE = UUID("6a1ffb8e-8f0c-5d8c-9a7b-0f6a2f6f7d11")

if hasattr(os, "register_at_fork"):  # a forked worker and its siblings inherit the same random state
    os.register_at_fork(after_in_child=uuid_utils.reseed_rng)


def new(*, at: datetime | None = None) -> str:
    """A new id: a UUIDv7 (RFC 9562, section 5.7), so ids sort by their time, which is now or `at`.

    Forked processes make different ids. A message that is to be delivered later carries its due time, so that it is not
    old when it arrives.
    """
    random_id = uuid_utils.uuid7()
    if at is None:
        return str(random_id)
    milliseconds = max(int(at.timestamp() * 1000), 0)
    return str(UUID(int=milliseconds << 80 | random_id.int & (1 << 80) - 1))


@lru_cache(maxsize=256)  # a consumer asks twice for each message: is it stale, and for its inbox row
def time_of(id_: str) -> datetime | None:
    """The moment in a UUIDv7, to the millisecond; None for any other id."""
    try:
        if _USUAL.fullmatch(id_):  # takes a third of the time of parsing
            return datetime.fromtimestamp(int(id_[:8] + id_[9:13], 16) / 1000, UTC)
        parsed = UUID(id_)
        return datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC) if parsed.version == 7 else None
    except (ValueError, OverflowError, OSError):  # not a UUID, or a year that Python does not know
        return None


def derive(*parts: IdPart) -> str:
    """The same id for the same parts, on every machine and in every version: a UUIDv5 (RFC 9562, section 5.5).

    For a producer that may run twice: both runs give their message one id, and inboxes see a duplicate. Parts are kept
    apart and typed: ("ab", "c"), ("a", "bc"), (1,) and ("1",) all differ.

    Raises:
        TypeError: there is no part, or one whose text could differ between runs, such as a float or a datetime.
    """
    if not parts:
        raise TypeError("ids.derive needs at least one part, such as ids.derive('order', order_id, 'confirmed')")
    try:
        return str(uuid5(_NAMESPACE, "".join(_canonical(parts))))
    except UnicodeEncodeError as error:
        raise TypeError(f"ids.derive got text that is not valid Unicode: {error}") from error


GENERATIONS = 16
"""The number of ids that are derived from one another and have one time: a digit of the id counts them."""


def derive_from(cause_id: str, *parts: IdPart) -> str:
    """The id of a message that a handler adds: the same each time that the handler runs for the same message.

    It is a UUIDv8 (RFC 9562, section 5.8), whose 48 bits of time are those of the cause. So it sorts beside its cause,
    into the same partition of an inbox. That time is not the message's own, and `time_of` does not return it. If the
    cause has no time, or `GENERATIONS` have had it, the id is that of `derive`: a chain of causes may go on for years.
    """
    if not _TIMED.fullmatch(cause_id):
        return derive(cause_id, *parts)
    generation = int(cause_id[15], 16) + 1 if cause_id[14] == "8" else 0
    if generation >= GENERATIONS:
        return derive(cause_id, *parts)
    rest = blake2b("".join(_canonical((cause_id, *parts))).encode(), digest_size=10).hexdigest()
    variant = "89ab"[int(rest[3], 16) & 3]
    return f"{cause_id[:13]}-8{generation:x}{rest[1:3]}-{variant}{rest[4:7]}-{rest[7:19]}"


def time_before(id_: str) -> datetime | None:
    """The earliest moment at which its message can have been added: that of its id, or of the message that caused it.

    None if the id tells neither.
    """
    if not _TIMED.fullmatch(id_):
        return time_of(id_)
    try:
        return datetime.fromtimestamp(int(id_[:8] + id_[9:13], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _canonical(parts: tuple[IdPart, ...]) -> Iterator[str]:
    for part in parts:
        plain = part.value if isinstance(part, Enum) else part
        match plain:
            case bool():
                pass
            case str():
                yield f"s{len(plain)}:{plain}"
                continue
            case int():
                yield f"i{plain};"
                continue
            case UUID():
                yield f"u{plain.hex}"
                continue
            case bytes():
                yield f"b{len(plain)}:{plain.hex()}"
                continue
        raise TypeError(
            f"ids.derive got {plain!r} ({type(plain).__name__}); it takes str, int, UUID and bytes. "
            "Turn anything else into text that never varies, for instance format(total, 'f')"
        )
