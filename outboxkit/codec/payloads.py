"""Events to bytes and back: JSON through msgspec, with pydantic models if pydantic is installed."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, Self, TypeVar, cast

import msgspec

from outboxkit.codec import pydantic_models
from outboxkit.codec.compression import INFLATED_LIMIT, compression_named, inflate, inflated_size
from outboxkit.errors import ConfigurationError, DecodeError, EncodeError
from outboxkit.errors.failures import first_line, printable, text_of
from outboxkit.events import is_called_outside, is_pydantic

T = TypeVar("T")

JSON_TYPE = "application/json"
READABLE_ENCODINGS = ("", "identity", "utf-8", "utf8", "us-ascii")
"""Content encodings that leave the payload as it is. Some clients write the text's character set there."""
LARGE = 256 * 1024
"""Bytes of an inflated payload from which on it is decoded in a thread, and without collections of garbage."""
MAX_PAYLOAD_BYTES = 1024 * 1024
"""The largest payload that `outbox.add` accepts without `max_payload_bytes`, and of an HTTP answer that is kept."""


class ExactNumber(float):
    """A float of a JSON document without a class. It is written again as its text, which may have more digits."""

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


def encode(event: Any, *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """The event as JSON. Decimal, datetime, date, time, UUID and enum values keep their exact value.

    Only a UTC offset with seconds, as some had before 1937, is rounded to a minute.

    Raises:
        EncodeError: a value has no JSON form, or the payload is larger than `limit` bytes.
        ConfigurationError: no instance of the class could be decoded.
    """
    cls: Any = type(event)
    check_event_class(cls, is_read=not is_called_outside(cls))
    return encode_value(event, limit=limit)


def encode_value(value: Any, *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Any value as JSON, written as in an event. It is decoded as plain JSON, not as an instance of a class.

    Raises:
        EncodeError: it has no JSON form, or is larger than `limit` bytes.
    """
    try:
        payload = write(value)
        has_non_finite = b"null" in payload and _has_non_finite(plain(value))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError, msgspec.MsgspecError) as error:
        raise EncodeError(f"{type(value).__qualname__} cannot be encoded as JSON: {error}") from error
    if len(payload) > limit:
        raise EncodeError(
            f"{type(value).__qualname__} is {len(payload)} bytes long when encoded; at most {limit} are accepted "
            "(max_payload_bytes). Send a reference to the content instead of the content"
        )
    if has_non_finite:
        raise EncodeError(
            f"{type(value).__qualname__} holds a float that is NaN or infinite, which JSON has no form for; "
            "use Decimal, or None for an unknown value"
        )
    return payload


def decode(event_type: type[T], payload: bytes, encoding: str | None = None) -> T:
    """The event that these bytes encode. Fields that the class does not know are ignored, so producers may add some.

    Raises:
        DecodeError: it is not JSON, or a field is missing or of the wrong type; the text names the field. Or the class
            raises any other exception. Or the message has a content encoding that is not known, or the payload cannot
            be inflated.
    """
    if encoding is not None:
        payload = plain_payload(payload, encoding)
    try:
        with _uncollected() if len(payload) > LARGE else nullcontext():
            return cast("T", read(event_type, payload))
    except Exception as error:  # whatever a validator of the class raises
        raise DecodeError(f"the payload is not a valid {event_type.__qualname__}: {_explain(error)}") from error


def plain_payload(payload: bytes, encoding: str | None, *, limit: int = INFLATED_LIMIT) -> bytes:
    """The payload without its content encoding: inflated, if it is compressed.

    Raises:
        DecodeError: the encoding is not known, or the payload cannot be inflated.
    """
    if encoding is None or encoding.strip().lower() in READABLE_ENCODINGS:
        return payload
    compression = compression_named(encoding)
    if compression is None:
        raise DecodeError(
            f"the payload is {printable(encoding, 40)}-encoded (content_encoding), and consumers read plain JSON, gzip "
            "and zstd: have its producer send it as one of these"
        )
    return inflate(payload, compression, limit=limit)


def plain_size(payload: bytes, encoding: str | None, *, limit: int, count: Callable[[bytes], int] = len) -> int:
    """The bytes of the payload without its content encoding, counted up to one more than `limit` if it is compressed.

    Nothing is kept of it. One that cannot be inflated counts as far as that goes. `count` says what a part counts as.
    """
    compression = compression_named(encoding) if encoding else None
    return count(payload) if compression is None else inflated_size(payload, compression, limit=limit, count=count)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A block without garbage collection, which would visit all lists of a document again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _has_non_finite(value: Any) -> bool:
    """Whether it has a NaN or an infinity. JSON encoders write null for it, so that it is decoded to another value."""
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_non_finite, value))
    return isinstance(value, float) and not math.isfinite(value)


_FLUSH_FIRST = "If it is the id of a new row, have the producer flush its session before it makes the event"


def _explain(error: Exception) -> str:
    errors = getattr(error, "errors", None)  # pydantic's own text has several lines and quotes the whole input
    if callable(errors):
        with suppress(Exception):
            return printable(
                "; ".join(f"{'.'.join(map(str, e['loc'])) or 'payload'}: {e['msg']}" for e in errors(include_url=False))
            )
    if isinstance(error, msgspec.MsgspecError | ValueError | TypeError):
        text = printable(text_of(error))
        return f"{text}. {_FLUSH_FIRST}" if "got `null` - at" in text else text
    return first_line(error)  # the text of a KeyError says nothing without its type


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
def check_event_class(cls: Any, *, is_read: bool = True) -> None:
    """Refuse a class whose instances can be encoded but never decoded to equal ones; checked once for each class.

    Its annotations must be resolvable by now, so it runs at the first `add` and at a consumer's start. If an outside
    system reads the payload, `is_read` is false, and a field may be of a type that is only written.

    Raises:
        ConfigurationError: a field cannot travel; the text names it, and a type that can.
    """
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
        if is_read and isinstance(info, msgspec.inspect.CustomType):
            if not is_pydantic(info.cls):
                raise ConfigurationError(
                    f"{cls.__qualname__} has a field of type {info.cls.__qualname__}, which has no JSON form. Use a "
                    "type that has one, such as str, or a nested dataclass"
                )
            check_event_class(info.cls)


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
