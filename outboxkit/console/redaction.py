"""What is in a message, as a page may show it: decoded, and without what is nobody's business."""

import codecs
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from outboxkit.codec.payloads import MAX_PAYLOAD_BYTES, plain_payload
from outboxkit.codec.rows import decode_headers
from outboxkit.errors import DecodeError

HIDDEN = "•••"
MOST_SIGNS = 200_000
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_EXACT_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))
"""It keeps numbers as they were written."""
Redact = Callable[[str, Any], Any]
"""Takes a message's type and its payload: the JSON document, or else the bytes. Returns what may be shown."""


class Redaction:
    """Takes fields out of payloads and headers.

    Args:
        redact: names of fields, at any depth and in either case, whose values are hidden; or a function of a payload,
            with which all values of headers are hidden.
    """

    def __init__(self, redact: Redact | Iterable[str] = ()) -> None:
        self._function = redact if callable(redact) else None
        self._names = frozenset() if callable(redact) else frozenset(name.casefold() for name in redact)

    def payload(self, type_: str, payload: bytes, encoding: str | None) -> tuple[str, str]:
        """The payload as text, and a remark about it; an empty one if there is none to make."""
        remark = ""
        try:
            plain = plain_payload(payload, encoding)
        except DecodeError as error:
            plain, remark = payload, f"It cannot be inflated: {error}."
        if is_cut := len(plain) > MAX_PAYLOAD_BYTES:  # to decode a stranger's would hold up the process for seconds
            if self._names or self._function:
                return HIDDEN, "It is too large for anything to be taken out of it, and it is not shown."
            plain, remark = plain[:MOST_SIGNS], f"It is large: only its first {MOST_SIGNS} bytes are shown."
        shown: Any = plain
        is_json = True
        try:
            shown = (_DECODER if self._function else _EXACT_DECODER).decode(plain)
        except (ValueError, RecursionError):
            is_json, remark = False, remark or "It is not JSON."
            if self._names:
                return HIDDEN, f"{remark} So no field can be taken out of it, and it is not shown."
        try:
            if self._function:
                shown = self._function(type_, shown)
            if is_json:
                is_whole = not self._function and not self._names
                document = plain if is_whole else msgspec.json.encode(self._hidden(shown))
                shown = msgspec.json.format(document, indent=2)
        except Exception:  # noqa: BLE001 - whatever the function raised, nothing is shown
            return HIDDEN, "It is not shown: taking out what must not be seen has failed."
        if isinstance(shown, bytes):
            try:
                shown, _ = codecs.utf_8_decode(shown, "strict", not is_cut)
            except UnicodeDecodeError:
                shown, remark = shown[:4096].hex(" "), f"{remark} The first bytes in hexadecimal:"
        text = str(shown)
        if len(text) <= MOST_SIGNS:
            return text, remark
        return text[:MOST_SIGNS], f"{remark} Only the first {MOST_SIGNS} characters are shown.".strip()

    def headers(self, stored: bytes) -> Mapping[str, Any]:
        """The headers, without the values of hidden fields; a function is not asked, so all of them are hidden."""
        try:
            headers = decode_headers(stored)
            return dict.fromkeys(headers, HIDDEN) if self._function else self._hidden(headers)
        except (ValueError, RecursionError, TypeError):
            return {"(unreadable)": HIDDEN if self._names or self._function else repr(stored[:64])}

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: HIDDEN if str(name).casefold() in self._names else self._hidden(one)
                for name, one in value.items()
            }
        return [self._hidden(one) for one in value] if isinstance(value, list) else value
