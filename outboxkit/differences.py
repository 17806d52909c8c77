"""The first difference between an event and its decoded payload."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from outboxkit.events import is_pydantic

_PLAIN = (str, int, float, list, tuple, dict)
"""Types that JSON has a form of its own for."""


def first_difference(original: Any, decoded: Any, path: str = "") -> str | None:
    """The path of the first field whose value differs, such as `lines[...].price`; None if nothing is lost.

    A plain value may be decoded to its annotation's type, such as text to a UUID, or an int to a Decimal. The other way
    round is a difference: an instance or a UUID in a field of type Any would be decoded to a plain value.

    Args:
        original: the value that was encoded.
        decoded: the value that was decoded.
        path: the value's path in the event.
    """
    before, after = _fields(original), _fields(decoded)
    if before is not None and after is not None:
        return _of_instances(before, after, path)
    if isinstance(original, dict) and (isinstance(decoded, dict) or after is not None):
        return _of_mappings(original, decoded if after is None else after, f"{path}[...]")
    if isinstance(original, list | tuple) and isinstance(decoded, list | tuple):
        if len(original) != len(decoded):
            return path
        return _first((*pair, f"{path}[...]") for pair in zip(original, decoded, strict=True))
    return None if _is_alike(original, decoded) else path


def _of_instances(original: dict[str, Any], decoded: dict[str, Any], path: str) -> str | None:
    lost = next((name for name in original if name not in decoded), None)
    if lost is not None:
        return _within(path, lost)
    return _first((value, decoded[name], _within(path, name)) for name, value in original.items())


def _of_mappings(original: dict[Any, Any], decoded: dict[Any, Any], path: str) -> str | None:
    if original.keys() != decoded.keys():  # keys of other types have become text, or some are lost
        return None if len(original) <= len(decoded) else path
    return _first((value, decoded[key], path) for key, value in original.items())


def _is_alike(original: Any, decoded: Any) -> bool:
    if original is None or decoded is None:
        return original is decoded
    if type(original) is not type(decoded):
        return isinstance(original, _PLAIN) or not isinstance(decoded, _PLAIN)
    if getattr(type(original), "__eq__", None) is vars(object)["__eq__"]:  # its class does not define equality
        return True
    return bool(original == decoded or (original != original and decoded != decoded))  # noqa: PLR0124 - NaN


def _first(pairs: Iterable[tuple[Any, Any, str]]) -> str | None:
    return next((path for path in (first_difference(*pair) for pair in pairs) if path is not None), None)


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an instance of an event class, or of a class nested in one; None for any other value."""
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
