"""Event classes: encoded to JSON and decoded, and the checks for classes and events that would not come back."""

import dataclasses
from collections.abc import Iterable
from functools import cache
from typing import Any, Self

import msgspec

from outboxkit import pydantic_models
from outboxkit.errors import ConfigurationError, EncodeError
from outboxkit.events import is_called_outside, is_pydantic

_PLAIN = (str, int, float, list, tuple, dict)
"""Types that JSON has a form of its own for."""


class ExactNumber(float):
    """A float of a JSON document without a class: its text, which may have more digits, is what is written again."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> Self:
        """The number that this JSON text is."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)

    def __repr__(self) -> str:
        return self.text


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


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_OPEN = (msgspec.inspect.CustomType, msgspec.inspect.AnyType, msgspec.inspect.RawType)
_HOOKS = ("__post_init__", "__attrs_post_init__")


def write(event: Any) -> bytes:
    """The event as JSON."""
    return pydantic_models.write_pydantic(event) if is_pydantic(type(event)) else _ENCODER.encode(event)


def plain(event: Any) -> Any:
    """The event in plain Python objects, as JSON would have them."""
    return (
        pydantic_models.plain_pydantic(event)
        if is_pydantic(type(event))
        else msgspec.to_builtins(event, enc_hook=_dump_plain)
    )


def read(cls: Any, payload: bytes) -> Any:
    """The event in these bytes; errors of the class pass unchanged. Decoded to `Any`, floats are `ExactNumber`s."""
    return pydantic_models.read_pydantic(cls, payload) if is_pydantic(cls) else _decoder(cls).decode(payload)


@cache
def check_event_class(cls: Any) -> None:
    """Refuse a class whose instances can be encoded but never decoded to equal ones; checked once for each class.

    Its annotations must be resolvable by now, so it runs at the first `add` and at a consumer's start.

    Raises:
        ConfigurationError: a field cannot travel; the text names it, and a type that can.
    """
    _check_written(cls)
    if is_pydantic(cls):
        pydantic_models.check_read(cls)
        return
    for info in types_within(cls):
        if isinstance(info, msgspec.inspect.CustomType):
            if not is_pydantic(info.cls):
                raise ConfigurationError(
                    f"{cls.__qualname__} has a field of type {info.cls.__qualname__}, which has no JSON form. Use a "
                    "type that has one, such as str, or a nested dataclass"
                )
            check_event_class(info.cls)


@cache
def needs_check(cls: Any) -> bool:
    """Whether an event of this class is decoded again when it is added. Not needed for plain fields without code.

    Nor for a class with a destination of its own: an outside system reads the payload as it is.

    Raises:
        ConfigurationError: as `check_event_class`.
    """
    if is_called_outside(cls):
        _check_written(cls)
        return False
    check_event_class(cls)
    if is_pydantic(cls) or any(hasattr(cls, hook) for hook in _HOOKS):
        return True
    info, *nested = types_within(cls)
    attributes = getattr(cls, "__attrs_attrs__", ())
    return (
        any(attribute.converter or attribute.validator for attribute in attributes)
        or any(hasattr(each, "fields") or isinstance(each, _OPEN) for each in nested)
        or any(getattr(each, name, None) is not None for each in (info, *nested) for name in _CONSTRAINTS)
    )


def check_read_back(event: Any, payload: bytes) -> None:
    """Refuse an event that is not decoded to an equal one.

    Raises:
        EncodeError: the class refuses its own payload, or a field gets another value.
    """
    cls: Any = type(event)
    try:
        decoded = read(cls, payload)
        if decoded == event:
            return
        path = first_difference(event, decoded)
    except Exception as error:
        raise EncodeError(
            f"{cls.__qualname__} was encoded, and cannot be decoded again: {' '.join(str(error).split())}"
        ) from error
    if path is not None:
        raise EncodeError(
            f"{cls.__qualname__} would not come back as it is: {path or 'its value'} would be lost or changed. A "
            "field takes instances of exactly the class that it names; one of type Any takes JSON values. Code of the "
            "class that changes values must give the same result when it runs again"
        )


def _check_written(cls: Any) -> None:
    if is_pydantic(cls):
        pydantic_models.check_written(cls)
        return
    for info in types_within(cls):
        for attribute in getattr(getattr(info, "cls", None), "__attrs_attrs__", ()):
            if attribute.name.startswith("_"):
                raise ConfigurationError(
                    f"{info.cls.__qualname__}.{attribute.name} is a private field of an attrs class, which is not "
                    f"written: call it {attribute.name.strip('_')}, or leave it out of the event"
                )


@cache
def types_within(cls: Any) -> list[Any]:
    """The msgspec types of the class, and of every type that its fields name at any depth.

    Raises:
        ConfigurationError: msgspec cannot decode such a class.
    """
    try:
        _decoder(cls)
        waiting = [msgspec.inspect.type_info(cls)]
    except Exception as error:
        reason = " ".join(str(error).split())
        if isinstance(error, NameError):
            reason = f"its annotations cannot be resolved, {reason}. The names in them must be importable"
        elif "more than one dataclass" in reason:
            reason += (
                ". Make the alternatives msgspec.Struct with tag=True, or use a pydantic model and a discriminator"
            )
        elif "union" in reason:
            reason += ". Use only one of these types"
        raise ConfigurationError(f"{cls.__qualname__} can be encoded, but never decoded: {reason}") from error
    types: list[Any] = []
    while waiting:
        info = waiting.pop(0)
        if any(info is other for other in types):
            continue
        types.append(info)
        waiting += [field.type for field in getattr(info, "fields", ())]
        waiting += [getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
        waiting += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
        if hasattr(info, "type"):
            waiting.append(info.type)
    return types


def _dump(value: Any) -> Any:
    if isinstance(value, ExactNumber):
        return msgspec.Raw(value.text.encode())
    if is_pydantic(type(value)):
        return pydantic_models.plain_pydantic(value, mode="json")
    raise NotImplementedError(f"values of type {type(value).__qualname__} have no JSON form")


def _dump_plain(value: Any) -> Any:
    return value.text if isinstance(value, ExactNumber) else _dump(value)


def _load(cls: type, value: Any) -> Any:
    if is_pydantic(cls):
        return pydantic_models.read_pydantic(cls, msgspec.json.encode(value))
    raise NotImplementedError(f"values of type {cls.__qualname__} have no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_dump)


@cache
def _decoder(cls: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls, dec_hook=_load, float_hook=ExactNumber if cls is Any else None)
