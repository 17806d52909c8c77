"""A request to `begin`: the header Idempotency-Key, checked values, and parameters of the row and its locks."""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from outboxkit import problems
from outboxkit.errors import ConfigurationError

LIMIT = 255
LINE_LIMIT = 4096
"""Characters of the header's line, with parameters and escapes. A longer one is refused unread."""

_STRING = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
_ITEM = "|".join(
    (
        r"-?[0-9]{1,12}\.[0-9]{1,3}",  # decimal
        r"@?-?[0-9]{1,15}",  # date, integer
        _STRING,
        r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*",  # token
        r":[A-Za-z0-9+/=]*:",  # bytes
        r"\?[01]",  # boolean
        r'%"(?:[\x20\x21\x23\x24\x26-\x7e]|%[0-9a-f]{2})*"',  # display string
    )
)
_PARAMETER = rf"; *[a-z*][a-z0-9_.*-]*(?:=(?:{_ITEM}))?"
_QUOTED = re.compile(rf"({_STRING})(?:{_PARAMETER})*")
_ESCAPED = re.compile(r"\\(.)")
_VISIBLE = re.compile(r"[\x21-\x7e]*")


def parse_key(fields: Sequence[str]) -> str:
    """The key in the lines of the header Idempotency-Key.

    It is a string of structured fields, `"8e03978e"` (RFC 9651, section 3.3.3; parameters are ignored), or the same key
    bare, `8e03978e`. A bare key has no quote, and no comma, which would be a sign of two joined lines.

    Raises:
        Problem: 400; there is no line or more than one, or it holds no key of 1 to 255 visible ASCII characters.
    """
    if not fields:
        raise problems.key_missing()
    if len(fields) > 1:
        raise problems.key_invalid("Idempotency-Key came more than once")
    text = fields[0].strip(" \t")
    if len(text) > LINE_LIMIT:
        raise problems.key_invalid(f"Idempotency-Key has {len(text)} characters")
    key = _quoted(text) if text.startswith('"') else _bare(text)
    if not key:
        raise problems.key_invalid("Idempotency-Key is empty")
    if len(key) > LIMIT:
        raise problems.key_invalid(f"Idempotency-Key has {len(key)} characters")
    if not _VISIBLE.fullmatch(key):
        raise problems.key_invalid("Idempotency-Key has a blank, or another character that is not visible ASCII")
    return key


def _quoted(text: str) -> str:
    match = _QUOTED.fullmatch(text)
    if match is None:
        raise problems.key_invalid("Idempotency-Key begins with a quote, but is not one string in quotes")
    return _ESCAPED.sub(r"\1", match[1][1:-1])


def _bare(text: str) -> str:
    if "," in text or '"' in text:
        raise problems.key_invalid("Idempotency-Key has a comma or a quote without being a string in quotes")
    return text


LENGTH = 255
"""Characters of a scope, a principal and a key."""
FINGERPRINT_BYTES = 32
LONGEST = timedelta(days=36_525)
_DIGEST = "sha256:"
_UNSIGNED = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A request with its run's token and retention. A `lease` of None: it runs in one transaction."""

    scope: str
    principal: str | None
    key: str
    fingerprint: bytes
    token: str
    retention: timedelta
    lease: timedelta | None

    def __post_init__(self) -> None:
        check_text("scope", self.scope, LENGTH)
        check_text("key", self.key, LENGTH)
        if self.principal is not None:
            check_text("principal", self.principal, None)
        if not isinstance(self.fingerprint, bytes):
            raise TypeError(
                f"fingerprint is {type(self.fingerprint).__name__}; bytes are accepted: idempotency.fingerprint"
            )
        if len(self.fingerprint) != FINGERPRINT_BYTES:
            raise ValueError(f"fingerprint has {len(self.fingerprint)} bytes; {FINGERPRINT_BYTES} are accepted")
        check_span("retention", self.retention)
        if self.lease is not None:
            check_span("lease", self.lease)
            if self.lease > self.retention:
                raise ConfigurationError(f"lease {self.lease} is longer than retention {self.retention}")

    def parameters(self) -> dict[str, Any]:
        """The parameters of the statements that take a key."""
        return {
            **row_of(self.scope, self.principal, self.key),
            "asked": self.fingerprint,
            "token_now": self.token,
            "retention": self.retention,
            "lease": self.lease,
        }

    def locks(self) -> "Locks":
        """The numbers of the request's locks."""
        return Locks.of(row_of(self.scope, self.principal, self.key), self.fingerprint)


@dataclass(frozen=True, slots=True)
class Locks:
    """A request's advisory locks: the key's, and a pair for the key and the fingerprint."""

    request: int
    request_part: int
    asked_part: int

    @classmethod
    def of(cls, row: Mapping[str, str], fingerprint: bytes) -> "Locks":
        """The locks as hashes. A request that shares one by chance waits, or is told to come again."""
        texts = [row[name].encode() for name in ("at_scope", "at_principal", "at_key")]
        framed = b"".join(struct.pack(">I", len(text)) + text for text in texts)
        request, part = struct.unpack(">qi", sha256(b"outboxkit idempotency" + framed).digest()[:12])
        return cls(request, part, struct.unpack(">i", fingerprint[:4])[0])

    def to_take(self) -> dict[str, int]:
        """The parameters of PostgreSQL's locking functions, whose numbers are signed."""
        return {"request_lock": self.request, "request_part": self.request_part, "asked_part": self.asked_part}

    def to_find(self) -> dict[str, int]:
        """The parameters that find them in `pg_locks`, whose halves are unsigned."""
        return {"request_lock": self.request, "request_part": self.request_part & _UNSIGNED}

    @property
    def part_shown(self) -> int:
        """The half that stands for the fingerprint, as `pg_locks` shows it."""
        return self.asked_part & _UNSIGNED


def row_of(scope: str, principal: str | None, key: str) -> dict[str, str]:
    """The key of the row, as parameters.

    A principal that is too long is replaced by its digest, and so is one that looks like a digest.
    """
    stored = principal or ""
    if len(stored) > LENGTH or stored.startswith(_DIGEST):
        stored = _DIGEST + sha256(stored.encode()).hexdigest()
    return {"at_scope": scope, "at_principal": stored, "at_key": key}


def check_text(name: str, value: object, limit: int | None) -> None:
    """Raise unless it is text that both databases can hold.

    Raises:
        TypeError: it is not a str.
        ValueError: it is empty, longer than `limit` characters, or with a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; a str is accepted")
    if not value or (limit is not None and len(value) > limit):
        accepted = f"1 to {limit}" if limit is not None else "at least 1"
        raise ValueError(f"{name} has {len(value)} characters; {accepted} are accepted")
    if "\0" in value or not _is_unicode(value):
        raise ValueError(f"{name} {value!r} holds a NUL or a lone surrogate, which no database keeps")


def check_span(name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless it is a duration that can be added to a time.

    Raises:
        ConfigurationError: it is not a timedelta, is negative, or is over a hundred years. Zero needs `zero`.
    """
    least = timedelta(0) if zero else timedelta(milliseconds=1)
    if not isinstance(value, timedelta) or not least <= value <= LONGEST:
        accepted = "zero to a hundred years" if zero else "a millisecond to a hundred years"
        raise ConfigurationError(f"{name} is {value!r}; a timedelta of {accepted} is accepted")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
