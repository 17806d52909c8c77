"""The value of the header Idempotency-Key, in any of its forms."""

import re
from collections.abc import Sequence

from outboxkit import problems

LIMIT = 255
LINE_LIMIT = 4096
"""Characters of the header's line, with parameters and escapes; no longer one is looked into."""

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
    bare, `8e03978e`. A bare key holds no comma, which would be a sign of two lines that were made one, and no quote.

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
        raise problems.key_invalid("Idempotency-Key has a blank, or something else that is no visible ASCII character")
    return key


def _quoted(text: str) -> str:
    found = _QUOTED.fullmatch(text)
    if found is None:
        raise problems.key_invalid("Idempotency-Key begins with a quote, but is not one string in quotes")
    return _ESCAPED.sub(r"\1", found[1][1:-1])


def _bare(text: str) -> str:
    if "," in text or '"' in text:
        raise problems.key_invalid("Idempotency-Key has a comma or a quote without being a string in quotes")
    return text
