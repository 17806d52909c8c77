"""Compression of payloads, as their `content_encoding` names it: gzip and zstd, bounded when inflated. Pure."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from outboxkit.errors import ConfigurationError, DecodeError
from outboxkit.errors.extras import zstd
from outboxkit.events import COMPRESSIONS, Compression

INFLATED_LIMIT = 16 * 1024 * 1024
"""The maximum bytes of a payload once it is inflated, whatever a setting says. RabbitMQ 4 accepts as many of a plain
one."""
WORTHWHILE = 1024
"""Bytes from which on a payload is compressed. A smaller one hardly shrinks."""
STREAMS_LIMIT = 100
"""The maximum number of streams, one behind the other, in one payload. Each costs a copy of those that follow."""
PIECE = 1024 * 1024
"""Bytes that are inflated at once to count them."""
_WINDOW_LOG = 24
"""The largest window of zstd, as a power of two: its decoder takes so much memory before it has written a byte."""
_GZIP, _GZIP_OR_ZLIB = 31, 47
"""The format of a stream of zlib, as its `wbits` say it."""
_OTHER_NAMES: dict[str, Compression] = {"x-gzip": "gzip"}


def compression_named(encoding: str | None) -> Compression | None:
    """The compression that a content encoding names; None if it names none that is known here."""
    if not encoding:
        return None
    name = encoding.strip().lower()
    return next((each for each in COMPRESSIONS if each == name), _OTHER_NAMES.get(name))


def deflate(payload: bytes, compression: Compression) -> bytes:
    """The payload, compressed. The same payload always gives the same bytes.

    Raises:
        ConfigurationError: the library for zstd is not installed.
    """
    if compression == "gzip":
        return zlib.compress(payload, wbits=_GZIP)
    compressed: bytes = zstd().compress(payload)
    return compressed


def inflate(payload: bytes, compression: Compression, *, limit: int = INFLATED_LIMIT) -> bytes:
    """The payload as it was before it was compressed. Takes about `limit` bytes of memory, whatever the payload is.

    Several streams, one behind the other, are one payload, as both formats say (RFC 1952, RFC 8878). "gzip" also reads
    a stream of zlib (RFC 1950).

    Raises:
        DecodeError: it is larger than `limit`, cut off, damaged, or followed by something else. Or the library for zstd
            is not installed.
    """
    try:
        return b"".join(_parts(payload, compression, limit, limit + 1))
    except ConfigurationError as error:
        raise DecodeError(str(error)) from None
    except (zlib.error, EOFError, ValueError, _zstd_error()) as error:
        text = " ".join(str(error).split())
        raise DecodeError(f"the payload is not valid {compression}, or more follows it: {text}") from error


def inflated_size(
    payload: bytes, compression: Compression, *, limit: int = INFLATED_LIMIT, count: Callable[[bytes], int] = len
) -> int:
    """The bytes of the payload once it is inflated, counted up to one more than `limit`, or up to the first damage.

    Takes about `PIECE` bytes of memory, and nothing is kept. Each part of it counts as what `count` says.
    """
    size = 0
    with suppress(ConfigurationError, DecodeError, zlib.error, EOFError, ValueError, _zstd_error()):
        for part in _parts(payload, compression, limit, PIECE):
            size += count(part)
    return size


def _parts(payload: bytes, compression: Compression, limit: int, most: int) -> Iterator[bytes]:
    """The inflated payload, in parts of `most` bytes."""
    rest, size, streams = payload, 0, 0
    while rest or not streams:
        streams += 1
        if streams > STREAMS_LIMIT:
            raise DecodeError(f"the payload has more than {STREAMS_LIMIT} {compression} streams")
        stream = _decompressor(compression)
        while not stream.eof:
            part = stream.decompress(rest, min(most, limit - size + 1))
            size += len(part)
            yield part
            if size > limit:
                raise DecodeError(f"the payload is larger than {limit} bytes once its {compression} is inflated")
            if not part and not stream.eof:
                raise DecodeError(f"the payload is cut off: its {compression} has no end")
            rest = getattr(stream, "unconsumed_tail", b"")
        rest = stream.unused_data


def _decompressor(compression: Compression) -> Any:
    if compression == "gzip":
        return zlib.decompressobj(_GZIP_OR_ZLIB)
    library = zstd()
    return library.ZstdDecompressor(options={library.DecompressionParameter.window_log_max: _WINDOW_LOG})


def _zstd_error() -> type[Exception]:
    try:
        error: type[Exception] = zstd().ZstdError
    except ConfigurationError:
        return EOFError
    return error
