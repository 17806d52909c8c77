"""Taking secrets out of text that comes from outside, however that text is encoded. Pure."""

import base64
import html
import re
from collections.abc import Iterable, Iterator

HIDDEN = "***"
RUN = 8
"""So many characters in a row of a secret are hidden wherever they are: an echo may be cut at either end."""
SHORTEST = 4
"""A shorter part of a URL, such as `v1` or `7`, is hidden within its path or query only."""
ROUNDS = 3
"""How often a character may be escaped: `&amp;#x2F;` is a slash, escaped twice."""
LONGEST = 8 * 1024
"""Bytes of a text that are looked at. What is behind them is dropped."""
_TAIL = 12 * RUN
"""A secret that begins so close to the end of these bytes may have been cut beyond recognition."""

_ESCAPE = re.compile(rb"%(?:25)*[0-9a-f]{2}|&#?[0-9a-z]{1,31};|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\.|\+", re.IGNORECASE)
_BLANKS = b"abfnrtv"


class Redaction:
    """Hides secrets in texts, also where they are percent-encoded or escaped as in HTML, JSON or source code.

    Case makes no difference. A secret of fewer than `RUN` characters is hidden where it is a word of its own.

    Args:
        secrets: as they are sent.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        plain = {_unescaped(secret.encode(errors="surrogatepass"))[0] for secret in secrets if secret}
        long = [each for each in plain if len(each) >= SHORTEST]
        coded = {code(each).rstrip(b"=") for each in long for code in (base64.b64encode, base64.urlsafe_b64encode)}
        coded = {_unescaped(each)[0] for each in coded}  # as what is looked at will be: a + may stand for a space
        folded = {each.lower() for each in plain | coded}
        self._words = [each for each in folded if len(each) < RUN]
        self._runs = {each[at : at + RUN] for each in folded for at in range(len(each) - RUN + 1)}

    def __call__(self, text: str) -> str:
        """The beginning of the text without the secrets."""
        whole = text.encode(errors="replace")
        shown = whole[:LONGEST]
        plain, origins = _unescaped(shown)
        secret = bytearray(len(shown) + 1)  # 1 for each byte that is part of a secret
        for start, end in self._places(plain.lower()):
            secret[origins[start] : origins[end]] = b"\1" * (origins[end] - origins[start])
        end = len(shown) if shown == whole else LONGEST - _TAIL
        pieces = re.finditer(rb"\x01+|\x00+", secret[:end])
        return "".join(
            HIDDEN if each[0][0] else shown[each.start() : each.end()].decode(errors="replace") for each in pieces
        )

    def _places(self, plain: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets are: begin and end."""
        for start in range(len(plain) - RUN + 1) if self._runs else ():
            if plain[start : start + RUN] in self._runs:
                yield start, start + RUN
        for word in self._words:
            start = plain.find(word)
            while start >= 0:
                end = start + len(word)
                if not plain[max(start - 1, 0) : start].isalnum() and not plain[end : end + 1].isalnum():
                    yield start, end
                start = plain.find(word, end)


def parts_of(path: str, query: str) -> list[str]:
    """What is secret of a URL: path and query, and every part of them that may be a secret by itself."""
    named = [text for pair in re.split("[&;]", query) for text in pair.partition("=")[::2]]
    found = [path, query, f"{path}?{query}", *path.split("/"), *named]
    return [each for each in found if len(each) >= SHORTEST]


def _unescaped(text: bytes) -> tuple[bytes, list[int]]:
    """The text without escapes, and where each of its bytes comes from; one more for the end."""
    origins = list(range(len(text) + 1))
    for _ in range(ROUNDS):
        made, sources, done = bytearray(), list[int](), 0
        for found in _ESCAPE.finditer(text):
            meaning = _meaning(found[0].lower())
            made += text[done : found.start()] + meaning
            sources += origins[done : found.start()] + [origins[found.start()]] * len(meaning)
            done = found.end()
        text, origins = bytes(made + text[done:]), sources + origins[done:]
    return text, origins


def _meaning(escape: bytes) -> bytes:
    match escape[:1], escape[1:2]:
        case b"&", _:
            return html.unescape(escape.decode()).encode(errors="surrogatepass")
        case b"+", _:
            return b" "
        case (b"%", _) | (b"\\", b"x") if len(escape) > 2:
            return bytes.fromhex(escape[-2:].decode())
        case b"\\", b"u" if len(escape) > 2:
            return chr(int(escape[2:], 16)).encode(errors="surrogatepass")
        case _, other:
            return b" " if other in _BLANKS else other
