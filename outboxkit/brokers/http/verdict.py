"""Verdict on a message from the response to its request. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from outboxkit.brokers import CONFIRMED, Answer, Receipt, Verdict

LONGEST_WAIT = timedelta(hours=1)
"""The longest wait that a `Retry-After` can ask for."""
SHOWN_BYTES = 1024
"""Bytes of an error response's body that are put into the reason."""
BUSY = (429, 503)
"""Status codes for "not now". They do not count as an attempt."""
UNAUTHORIZED = (401, 403, 407)
"""Status codes about the sender, not the message: its credentials are missing, wrong, expired or insufficient."""
TRANSIENT = (408, 409, 421, 425)
"""Other status codes below 500 after which the same request may succeed (RFC 9110, sections 15.5.9, 15.5.10, 15.5.20).

The request took too long, is in progress already, used a connection for other hosts, or came too early.
"""

Hide = Callable[[str], str]
"""Removes the secrets from a text."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response, as far as it was read.

    Attributes:
        status: its code.
        headers: by their names in lower case.
        body: up to the limit.
        is_cut: whether the body is longer than the limit.
        trouble: why the body is incomplete; None if it is not.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_cut: bool = False
    trouble: str | None = None


def receipt_of(response: HttpResponse, *, limit: int, now: datetime, hide: Hide = str) -> Receipt:
    """The receipt for the message of a request with this response.

    Args:
        response: as far as it was read.
        limit: bytes of an answer that are kept, named in the reason if it is longer.
        now: the present time, for a `Retry-After` that is a date.
        hide: removes the secrets from the reason.
    """
    status = response.status
    if 200 <= status < 300:
        return _confirmed(response, limit, hide)
    reason = _reason(response, hide)
    after = retry_after(response.headers.get("retry-after"), now=now)
    if status in UNAUTHORIZED:
        return Receipt(Verdict.POSTPONED, f"the destination answers {reason}", after)
    if status in BUSY:
        return Receipt(Verdict.POSTPONED, reason, after)
    if status in TRANSIENT or status >= 500 or _is_full_for_now(status, after):
        return Receipt(Verdict.REJECTED, reason, after)
    return Receipt(Verdict.REJECTED, reason, final=True)


def _is_full_for_now(status: int, after: timedelta | None) -> bool:
    """Whether a 413 has a `Retry-After`, which means that it is temporary (RFC 9110, section 15.5.14)."""
    return status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and after is not None


def retry_after(value: str | None, *, now: datetime) -> timedelta | None:
    """The wait that `Retry-After` (RFC 9110, section 10.2.3) asks for, in seconds or as a date; at most one hour.

    None if the header is missing or garbage, or the wait is over.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        digits = text.lstrip("0")
        if not digits:
            return None
        return LONGEST_WAIT if len(digits) > 4 else min(timedelta(seconds=int(digits)), LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(text)
        wait = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    return min(wait, LONGEST_WAIT) if wait > timedelta(0) else None


def excerpt(text: str, hide: Hide = str) -> str:
    """The beginning of an untrusted text, as one printable line without secrets."""
    cut = hide(text).strip().encode(errors="replace")[:SHOWN_BYTES].decode(errors="ignore")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def _confirmed(response: HttpResponse, limit: int, hide: Hide) -> Receipt:
    """The receipt for a 2xx. If the answer cannot be kept, the receipt has the reason: the call itself succeeded."""
    if response.trouble is not None:
        trouble = excerpt(response.trouble, hide)
        return Receipt(Verdict.REJECTED, f"{_name(response.status)}, but {trouble} in the middle of its answer")
    if response.is_cut:
        return Receipt(Verdict.CONFIRMED, f"its answer is longer than {limit} bytes and was not kept")
    if not response.body:
        return CONFIRMED
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        name = excerpt(encoding, hide)[:40]
        return Receipt(
            Verdict.CONFIRMED, f"its answer is encoded as {name!r}, which was not asked for; it was not kept"
        )
    content_type = response.headers.get("content-type", "").strip()
    answer = Answer(response.body, content_type) if content_type else Answer(response.body)
    return Receipt(Verdict.CONFIRMED, answer=answer)


def _reason(response: HttpResponse, hide: Hide) -> str:
    parts = [_name(response.status)]
    if 300 <= response.status < 400:
        parts.append("redirects are not followed")
    if body := excerpt(response.body.decode(errors="replace"), hide):
        parts.append(body)
    return ": ".join(parts)


def _name(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
