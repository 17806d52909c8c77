"""What an event has lost when it is read back: the first field that another value has come back for."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from outboxkit.events import is_pydantic

_PLAIN = (str, int, float, list, tuple, dict)
"""What JSON has a form of its own for."""


def first_difference(given: Any, found: Any, place: str = "") -> str | None:
    """The first field of an event that is another one now, such as `lines[...].price`; None: nothing is lost.

    A plain value whose type is not what its annotation says (text for a UUID, an int for a Decimal) may come back as
    what the annotation says. The other way round, an instance or a UUID in a field of type Any would come back as a
    plain value: that is a difference.

    Args:
        given: what was written.
        found: what was read.
        place: where it stands in the event.
    """
    before, after = _fields(given), _fields(found)
    if before is not None and after is not None:
        return _of_instances(before, after, place)
    if isinstance(given, dict) and (isinstance(found, dict) or after is not None):
        return _of_mappings(given, found if after is None else after, f"{place}[...]")
    if isinstance(given, list | tuple) and isinstance(found, list | tuple):
        if len(given) != len(found):
            return place
        return _first((*pair, f"{place}[...]") for pair in zip(given, found, strict=True))
    return None if _is_alike(given, found) else place


def _of_instances(given: dict[str, Any], found: dict[str, Any], place: str) -> str | None:
    lost = next((name for name in given if name not in found), None)
    if lost is not None:
        return _within(place, lost)
    return _first((value, found[name], _within(place, name)) for name, value in given.items())


def _of_mappings(given: dict[Any, Any], found: dict[Any, Any], place: str) -> str | None:
    if given.keys() != found.keys():  # keys of other types have become text, or some are gone
        return None if len(given) <= len(found) else place
    return _first((value, found[key], place) for key, value in given.items())


def _is_alike(given: Any, found: Any) -> bool:
    if given is None or found is None:
        return given is found
    if type(given) is not type(found):
        return isinstance(given, _PLAIN) or not isinstance(found, _PLAIN)
    if getattr(type(given), "__eq__", None) is vars(object)["__eq__"]:  # its class does not say what is equal
        return True
    return bool(given == found or (given != given and found != found))  # noqa: PLR0124 - not a number


def _first(pairs: Iterable[tuple[Any, Any, str]]) -> str | None:
    return next((place for place in (first_difference(*pair) for pair in pairs) if place is not None), None)


def _within(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an instance of one of the classes that events are made of; None for any other value."""
    cls = type(value)
    if is_pydantic(cls) and not dataclasses.is_dataclass(cls):
        return {**{name: getattr(value, name) for name in cls.model_fields}, **(value.__pydantic_extra__ or {})}
    if isinstance(value, msgspec.Struct):
        names: Iterable[str] = value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif hasattr(cls, "__attrs_attrs__"):
        names = [attribute.name for attribute in cls.__attrs_attrs__]
    else:
        return None
    return {name: getattr(value, name, None) for name in names}
