"""Classes of events: how each kind is written as JSON and read back, and which of them never could be."""

from functools import cache
from typing import Any

import msgspec

from outboxkit import pydantic_models
from outboxkit.differences import first_difference
from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.events import is_called_outside, is_pydantic

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_OPEN = (msgspec.inspect.CustomType, msgspec.inspect.AnyType, msgspec.inspect.RawType)
_HOOKS = ("__post_init__", "__attrs_post_init__")


def write(event: Any) -> bytes:
    """The event as JSON."""
    return pydantic_models.write(event) if is_pydantic(type(event)) else _ENCODER.encode(event)


def plain(event: Any) -> Any:
    """The event in plain Python objects, as JSON would have them."""
    return pydantic_models.plain(event) if is_pydantic(type(event)) else msgspec.to_builtins(event, enc_hook=_dump)


def read(cls: Any, payload: bytes) -> Any:
    """The event in these bytes; whatever the class raises is raised."""
    return pydantic_models.read(cls, payload) if is_pydantic(cls) else _decoder(cls).decode(payload)


@cache
def check(cls: Any) -> None:
    """Refuse a class whose instances can be written and never read as they were; asked once for each class.

    Its annotations must be resolved by now, so this is asked at the first `add` and at a consumer's start.

    Raises:
        ConfigurationError: a field cannot travel; the text names it, and says what can.
    """
    _check_written(cls)
    if is_pydantic(cls):
        pydantic_models.check_read(cls)
        return
    for known in _types_within(cls):
        if isinstance(known, msgspec.inspect.CustomType):
            if not is_pydantic(known.cls):
                raise ConfigurationError(
                    f"{cls.__qualname__} has a field of type {known.cls.__qualname__}, which has no JSON form. Use a "
                    "type that has one, such as str, or a nested dataclass"
                )
            check(known.cls)


@cache
def is_tried(cls: Any) -> bool:
    """Whether events of a class are read back when they are added; not those of plain fields without code of their own.

    Nor those of a class that declares a destination: they are for an outside system, which reads what it gets.

    Raises:
        ConfigurationError: as `check`.
    """
    if is_called_outside(cls):
        _check_written(cls)
        return False
    check(cls)
    if is_pydantic(cls) or any(hasattr(cls, hook) for hook in _HOOKS):
        return True
    known, *within = _types_within(cls)
    attributes = getattr(cls, "__attrs_attrs__", ())
    return (
        any(attribute.converter or attribute.validator for attribute in attributes)
        or any(hasattr(found, "fields") or isinstance(found, _OPEN) for found in within)
        or any(getattr(found, name, None) is not None for found in (known, *within) for name in _CONSTRAINTS)
    )


def check_read_back(event: Any, payload: bytes) -> None:
    """Refuse an event that does not come back from its payload as it is.

    Raises:
        EncodeError: the class refuses what was written, or a field comes back with another value.
    """
    cls: Any = type(event)
    try:
        found = read(cls, payload)
        if found == event:
            return
        place = first_difference(event, found)
    except Exception as error:
        raise EncodeError(
            f"{cls.__qualname__} was encoded, and cannot be decoded again: {' '.join(str(error).split())}"
        ) from error
    if place is not None:
        raise EncodeError(
            f"{cls.__qualname__} would not come back as it is: {place or 'its value'} would be lost or changed. A "
            "field takes instances of the very class that it names, and one of type Any what JSON has a form for. What "
            "a class does with its values must come out the same when it is done again"
        )


def _check_written(cls: Any) -> None:
    if is_pydantic(cls):
        pydantic_models.check_written(cls)
        return
    for known in _types_within(cls):
        for attribute in getattr(getattr(known, "cls", None), "__attrs_attrs__", ()):
            if attribute.name.startswith("_"):
                raise ConfigurationError(
                    f"{known.cls.__qualname__}.{attribute.name} is a private field of an attrs class, which is not "
                    f"written: call it {attribute.name.strip('_')}, or leave it out of the event"
                )


@cache
def _types_within(cls: Any) -> list[Any]:
    """What msgspec knows of the class, and of every type that its fields name at any depth.

    Raises:
        ConfigurationError: msgspec cannot read such a class.
    """
    try:
        _decoder(cls)
        waiting = [msgspec.inspect.type_info(cls)]
    except Exception as error:
        reason = " ".join(str(error).split())
        if isinstance(error, NameError):
            reason = f"its annotations cannot be resolved, {reason}. Names that stand there must be importable"
        elif "more than one dataclass" in reason:
            reason += (
                ". Make the alternatives msgspec.Struct with tag=True, or use a pydantic model and a discriminator"
            )
        elif "union" in reason:
            reason += ". Name one of these types alone"
        raise ConfigurationError(f"{cls.__qualname__} can be written, and never be read: {reason}") from error
    seen: list[Any] = []
    while waiting:
        known = waiting.pop(0)
        if any(known is other for other in seen):
            continue
        seen.append(known)
        waiting += [field.type for field in getattr(known, "fields", ())]
        waiting += [getattr(known, name) for name in ("item_type", "key_type", "value_type") if hasattr(known, name)]
        waiting += [*getattr(known, "types", ()), *getattr(known, "item_types", ())]
        if hasattr(known, "type"):
            waiting.append(known.type)
    return seen


def _dump(value: Any) -> Any:
    if is_pydantic(type(value)):
        return pydantic_models.plain(value, mode="json")
    raise NotImplementedError(f"values of type {type(value).__qualname__} have no JSON form")


def _load(cls: type, value: Any) -> Any:
    if is_pydantic(cls):
        return pydantic_models.read(cls, msgspec.json.encode(value))
    raise NotImplementedError(f"values of type {cls.__qualname__} have no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_dump)


@cache
def _decoder(cls: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls, dec_hook=_load)
