"""The fingerprint of a request: a digest of everything that it asks for."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from json.encoder import encode_basestring_ascii
from typing import NoReturn

VERSION = b"outboxkit request 1"
DEPTH = 100
"""Levels of nesting that are read as JSON, far below the interpreter's own limit."""
LARGEST_JSON = 256 * 1024
"""Bytes of a body that is read as JSON. A larger one is compared byte by byte, so that it costs what a hash costs."""

_JSON_TYPE = re.compile(r"application/(?:[^/]+\+)?json", re.IGNORECASE)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # one that does not end is the rest of the text
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LITERALS: Mapping[object, bytes] = {None: b"null", True: b"true", False: b"false"}
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def fingerprint(
    *,
    method: str,
    template: str,
    values: Mapping[str, str],
    query: Sequence[tuple[str, str]],
    content_type: str | None,
    body: bytes,
) -> bytes:
    """The SHA-256 digest of a request, 32 bytes.

    The order of query parameters of different names does not matter. In a JSON body the order of names, white space and
    escapes do not matter. A number is compared as it is written: 1 and 1.0 differ. Any other body is compared byte by
    byte. So is JSON that has more than 256 KiB or 100 levels, gives a name twice, or cannot be read.

    A large body takes a while: on an event loop call this in a thread if the body has more than 64 KiB.

    Args:
        method: the HTTP method.
        template: the path as the route declares it.
        values: the values of the template's names in the path.
        query: the parameters in their order.
        content_type: the header's value.
        body: the bytes as they were received.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    canonical = _canonical(body) if _JSON_TYPE.fullmatch(media_type) else None
    content: tuple[bytes | bytearray, ...] = (
        (b"raw", _encoded(media_type), body) if canonical is None else (b"json", canonical)
    )
    named = sorted(query, key=lambda pair: pair[0])
    parts = [
        _encoded(method),
        _encoded(template),
        _framed(_encoded(text) for pair in sorted(values.items()) for text in pair),
        _framed(_encoded(text) for pair in named for text in pair),
    ]
    digest = sha256(VERSION + _framed(parts))
    digest.update(sum(8 + len(part) for part in content).to_bytes(8))
    for part in content:  # each by itself: a large body is not copied
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


def _framed(parts: Iterable[bytes]) -> bytes:
    """The parts, each behind its length, so that nothing moves unnoticed from one to the next."""

    def pieces() -> Iterator[bytes]:
        for part in parts:
            yield len(part).to_bytes(8)
            yield part

    return b"".join(pieces())


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _canonical(body: bytes) -> bytearray | None:
    """One text for all JSON documents of the same content; None if the bytes are to be compared.

    Names get a dot, so that `{"n": "1.0"}` can stand for a number as it is written, and for nothing else.
    """
    if len(body) > LARGEST_JSON or _too_deep(body):
        return None
    try:
        read = json.loads(
            body.decode(), object_pairs_hook=_named, parse_int=_number, parse_float=_number, parse_constant=_refuse
        )
    except ValueError:
        return None
    text = bytearray()
    _write(read, text)
    return text


def _write(value: object, text: bytearray) -> None:
    """Append the value as `json.dumps` would write it, in a tenth of the memory."""
    match value:
        case bytes():
            text += b'{"n":"' + value + b'"}'
        case str():
            text += encode_basestring_ascii(value).encode()
        case list():
            text += b"["
            for each in value:
                _write(each, text)
                text += b","
            text[-1:] = b"]" if value else b"[]"
        case dict():
            text += b"{"
            for name in sorted(value):
                text += encode_basestring_ascii(name).encode() + b":"
                _write(value[name], text)
                text += b","
            text[-1:] = b"}" if value else b"{}"
        case _:
            text += _LITERALS[value]


def _too_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= DEPTH:
        return False
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEPTH


def _named(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = {f".{name}": value for name, value in pairs}
    if len(named) < len(pairs):
        raise ValueError("a name comes twice")
    return named


def _number(literal: str) -> bytes:
    """Bytes, which nothing else in JSON is, and of which one digit is one object for all."""
    return literal.encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
