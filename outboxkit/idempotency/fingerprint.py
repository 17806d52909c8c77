"""What tells one request from another: a digest of everything that it asks for."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NoReturn

VERSION = b"outboxkit request 1"
DEPTH = 100
"""Levels of nesting that are read as JSON, whatever is left of the interpreter's own limit."""

_JSON_TYPE = re.compile(r"application/(?:[^/]+\+)?json", re.IGNORECASE)
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)  # a string that does not end is the rest of the text


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
    the way a character is escaped do not matter; a number is compared as it is written: 1 and 1.0 differ. Any other
    body, also one that is JSON by its type but cannot be read as such or gives a name twice, is compared byte by byte.

    Args:
        method: the HTTP method.
        template: the path as the route is written.
        values: what stands in the path for the names of the template.
        query: the parameters in their order.
        content_type: the header's value.
        body: the bytes as they came.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    canonical = _canonical(body) if _JSON_TYPE.fullmatch(media_type) else None
    content = (b"raw", _encoded(media_type), body) if canonical is None else (b"json", canonical)
    named = sorted(query, key=lambda pair: pair[0])
    parts = [
        _encoded(method),
        _encoded(template),
        _framed(_encoded(text) for pair in sorted(values.items()) for text in pair),
        _framed(_encoded(text) for pair in named for text in pair),
        _framed(content),
    ]
    return sha256(VERSION + _framed(parts)).digest()


def _framed(parts: Iterable[bytes]) -> bytes:
    """The parts, each behind its length, so that nothing moves unnoticed from one to the next."""

    def pieces() -> Iterator[bytes]:
        for part in parts:
            yield len(part).to_bytes(8)
            yield part

    return b"".join(pieces())


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _canonical(body: bytes) -> bytes | None:
    """One text for all JSON documents of the same content; None where the bytes have to speak for themselves.

    Names get a dot, so that `{"n": "1.0"}` can stand for a number as it is written, and for nothing else.
    """
    try:
        text = body.decode()
        if _too_deep(text):
            return None
        read = json.loads(
            text, object_pairs_hook=_named, parse_int=_number, parse_float=_number, parse_constant=_refuse
        )
    except ValueError:
        return None
    return json.dumps(read, sort_keys=True, separators=(",", ":")).encode()


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEPTH:
        return False
    depth = 0
    for found in _BRACKETS.finditer(text):
        match text[found.start()]:
            case "[" | "{":
                depth += 1
                if depth > DEPTH:
                    return True
            case "]" | "}":
                depth -= 1
    return False


def _named(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = {f".{name}": value for name, value in pairs}
    if len(named) < len(pairs):
        raise ValueError("a name comes twice")
    return named


def _number(literal: str) -> dict[str, str]:
    return {"n": literal}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
