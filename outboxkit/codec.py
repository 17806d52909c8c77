"""Events to bytes and back: JSON through msgspec, with pydantic models if pydantic is installed."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar, cast

import msgspec

from outboxkit import models
from outboxkit.compression import INFLATED_LIMIT, compression_named, inflate, inflated_size
from outboxkit.errors import DecodeError, EncodeError
from outboxkit.failures import first_line, printable, text_of

T = TypeVar("T")

CONTENT_TYPE = "application/json"
READABLE_ENCODINGS = ("", "identity", "utf-8", "utf8", "us-ascii")
"""Content encodings that leave the payload as it is. Some clients write the text's character set there."""
LARGE = 256 * 1024
"""Bytes of an inflated payload from which on it is decoded in a thread, and without collections of garbage."""
MAX_PAYLOAD_BYTES = 1024 * 1024
"""The largest payload that `outbox.add` accepts without `max_payload_bytes`, and of an HTTP answer that is kept."""


def encode(event: Any, *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """The event as JSON. Decimal, datetime, date, time, UUID and enum values keep their exact value.

    Raises:
        EncodeError: a value has no JSON form, it would be decoded to another value, or the payload is larger than
            `limit` bytes.
        ConfigurationError: no instance of the class could be decoded.
    """
    cls: Any = type(event)
    needs_check = models.needs_check(cls)
    payload = encode_value(event, limit=limit)
    if needs_check:
        models.check_read_back(event, payload)
    return payload


def encode_value(value: Any, *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Any value as JSON, written as in an event. It is decoded as plain JSON, not as an instance of a class.

    Raises:
        EncodeError: it has no JSON form, or is larger than `limit` bytes.
    """
    try:
        payload = models.write(value)
        has_non_finite = b"null" in payload and _has_non_finite(models.plain(value))
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
            return cast("T", models.read(event_type, payload))
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
    compression = compression_named(encoding)
    return count(payload) if compression is None else inflated_size(payload, compression, limit=limit, count=count)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A block in which Python collects no garbage. Each new list of a document makes it look at all that are there."""
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


def _explain(error: Exception) -> str:
    errors = getattr(error, "errors", None)  # pydantic's own text has several lines and quotes the whole input
    if callable(errors):
        with suppress(Exception):
            return printable(
                "; ".join(f"{'.'.join(map(str, e['loc'])) or 'payload'}: {e['msg']}" for e in errors(include_url=False))
            )
    if isinstance(error, msgspec.MsgspecError | ValueError | TypeError):
        return printable(text_of(error))
    return first_line(error)  # the text of a KeyError says nothing without its type
