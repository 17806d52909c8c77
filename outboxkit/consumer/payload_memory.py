"""The memory of a consumer's process: handlers start once there is room for the events that they get.

An event may take more memory than plain objects: its class may have many defaults. `counter` says how much.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple

import msgspec

from outboxkit.codec import payloads, pydantic_models
from outboxkit.events import is_pydantic

ROOM = 4 * 1024 * 1024
"""Bytes of payloads that may be decoded at the same time in one process. They take `GROWTH` times as much."""
SMALL = 16 * 1024
"""A payload up to so many bytes needs no room: there are no more of them at a time than transactions."""


class PayloadMemory:
    """The room for payloads that are decoded at the same time, shared by all queues of a process.

    Args:
        size: the bytes of payloads, once they are inflated; `GROWTH` says how much memory they take.
    """

    def __init__(self, size: int = ROOM) -> None:
        self._size, self._taken = size, 0
        self._in_order, self._freed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def room(self, size: int, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Hold the room for a payload of so many bytes, once there is some. False if `stop` came before that.

        A payload that is larger than all of it waits until no other one is in work.
        """
        taking, stopping = asyncio.create_task(self._take(size)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            yield taking.done()
        finally:
            stopping.cancel()
            if taking.done():
                self._taken -= size
                self._freed.set()
            else:
                taking.cancel()

    async def _take(self, size: int) -> None:
        """Take so many bytes, in the order of the calls."""
        async with self._in_order:
            while self._taken and self._taken + size > self._size:
                self._freed.clear()
                await self._freed.wait()
            self._taken += size


GROWTH = 48
"""The factor by which JSON grows at most when it is decoded to plain objects. CPython 3.11 takes 95 bytes for each list
of `[[[]]]`, which has two bytes in the payload. Texts grow by a factor of 1 to 5."""


_INSPECT: Any = msgspec.inspect
_EXAMPLES: dict[type, bytes] = {
    **dict.fromkeys((_INSPECT.AnyType, _INSPECT.IntType, _INSPECT.FloatType, _INSPECT.DecimalType), b"0"),
    **dict.fromkeys((_INSPECT.ListType, _INSPECT.SetType, _INSPECT.FrozenSetType, _INSPECT.VarTupleType), b"[]"),
    _INSPECT.StrType: b'""',
    _INSPECT.DictType: b"{}",
    _INSPECT.BoolType: b"true",
    _INSPECT.NoneType: b"null",
    _INSPECT.DateTimeType: b'"2000-01-01T00:00:00Z"',
    _INSPECT.DateType: b'"2000-01-01"',
    _INSPECT.UUIDType: b'"00000000-0000-0000-0000-000000000000"',
}


class Heavy(NamedTuple):
    """The heaviest class in an event, if its instances take more than `GROWTH` times the bytes of their JSON.

    Attributes:
        opening: the first byte of an instance in JSON.
        size: the bytes of memory of an instance whose payload names no field that has a default.
    """

    opening: bytes
    size: int

    def count(self, part: bytes) -> int:
        """The bytes that this part of a payload counts as: as many as it has, or as its instances need."""
        return max(len(part), part.count(self.opening) * self.size // GROWTH)


def counter(event_types: Iterable[type]) -> Callable[[bytes], int]:
    """The function that says what a part of a payload counts as, if it is decoded to any of these classes."""
    heavy = [each for event_type in event_types if (each := heaviest(event_type)) is not None]
    return max(heavy, key=lambda each: each.size).count if heavy else len


@cache
def heaviest(event_type: type) -> Heavy | None:
    """The heaviest class in this one, by two instances of each: what both have in common costs nothing. None: none is.

    A class whose instances cannot be made without knowledge of it, such as one with checks of its own, does not count.
    """
    heavy: list[Heavy] = []
    for cls, info in _classes(event_type).items():
        try:
            document = _shortest(info)
            size = _weight(payloads.read(cls, document), payloads.read(cls, document), set())
        except Exception:  # noqa: BLE001, S112 - a check of the class, or a type without a shortest document
            continue
        own = len(document) + 1 - len(b"null") * document.count(b"null")  # where another instance may stand
        if size > GROWTH * own:
            heavy.append(Heavy(document[:1], size))
    return max(heavy, key=lambda each: each.size, default=None)


def _classes(event_type: Any) -> dict[Any, Any]:
    """The class and those that its fields name at any depth, with their types in msgspec."""
    classes: dict[Any, Any] = {}
    waiting = [event_type]
    while waiting:
        cls = waiting.pop()
        if cls in classes:
            continue
        if is_pydantic(cls):
            nested = pydantic_models.models_within(cls)
            classes |= {each: msgspec.inspect.CustomType(each) for each in nested}
        else:
            for info in payloads.types_within(cls):
                inner = set if isinstance(info, msgspec.inspect.SetType) else getattr(info, "cls", None)
                if is_pydantic(inner):
                    waiting.append(inner)
                elif inner is not None:
                    classes[inner] = info
    return classes


def _shortest(info: Any) -> bytes:
    """The shortest document of this type."""
    if isinstance(info, _INSPECT.CustomType):
        required = {name: field.annotation for name, field in info.cls.model_fields.items() if field.is_required()}
        return _object({name: _INSPECT.type_info(annotation) for name, annotation in required.items()})
    if hasattr(info, "fields"):
        required = {field.encode_name: field.type for field in info.fields if field.required}
        if getattr(info, "array_like", False) or isinstance(info, _INSPECT.NamedTupleType):
            return b"[" + b",".join(map(_shortest, required.values())) + b"]"
        if getattr(info, "tag_field", None):
            required[info.tag_field] = _INSPECT.LiteralType((info.tag,))
        return _object(required)
    if hasattr(info, "types"):
        if any(isinstance(each, _INSPECT.NoneType) for each in info.types):  # another one may be the class itself
            return b"null"
        return min(map(_shortest, info.types), key=len)
    if isinstance(info, _INSPECT.EnumType | _INSPECT.LiteralType):
        return msgspec.json.encode(next(iter(getattr(info, "cls", None) or info.values)))
    return _EXAMPLES[type(info)]


def _object(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: msgspec.Raw(_shortest(type_)) for name, type_ in fields.items()})


def _weight(value: Any, other: Any, counted: set[int]) -> int:
    """The bytes of all that belongs to this object, and not to another one that was decoded from the same document."""
    if value is other or id(value) in counted:
        return 0
    counted.add(id(value))
    fields = getattr(value, "__dict__", None), getattr(other, "__dict__", None)  # which makes them a dict, if need be
    pairs = zip(gc.get_referents(value), gc.get_referents(other), strict=False)
    return sys.getsizeof(value) + sum(_weight(*pair, counted) for pair in (*pairs, fields))
