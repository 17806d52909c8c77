"""Verdict on a message from the response to its request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import msgspec

from outboxkit.brokers import CONFIRMED, LONGEST_WAIT, Answer, Receipt, Verdict
from outboxkit.errors.failures import printable

LONGEST_TITLE = 200
"""Characters of a problem's title that are put into the reason."""
BUSY = (429, 503)
"""Status codes for "not now". They do not count as an attempt."""
UNAUTHORIZED = (401, 403, 407)
"""Status codes about the sender, not the message: its credentials are missing, wrong, expired or insufficient."""
PASSING_STATUSES = (408, 409, 421, 425)
"""Other status codes below 500 after which the same request may succeed (RFC 9110, sections 15.5.9, 15.5.10, 15.5.20).

The request took too long, is in progress already, used a connection for other hosts, or came too early.
"""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response, as far as it was read.

    Attributes:
        body: up to the limit.
        is_cut: whether the body is longer than the limit.
        trouble: why the body is incomplete; None if it is not.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_cut: bool = False
    trouble: str | None = None


class _Problem(msgspec.Struct):
    title: str = ""


def receipt_of(response: HttpResponse, *, limit: int, now: datetime) -> Receipt:
    """The receipt for the message of a request with this response.

    Args:
        response: as far as it was read.
        limit: bytes of an answer that are kept, named in the reason if it is longer.
        now: the present time, for a `Retry-After` that is a date.
    """
    status = response.status
    if 200 <= status < 300:
        return _confirmed(response, limit)
    reason = _reason(response)
    after = retry_after(response.headers.get("retry-after"), now=now)
    if status in UNAUTHORIZED:
        return Receipt(Verdict.POSTPONED, f"the destination answers {reason}", after)
    if status in BUSY:
        return Receipt(Verdict.POSTPONED, reason, after)
    if status in PASSING_STATUSES or status >= 500 or _is_full_for_now(status, after):
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


def _confirmed(response: HttpResponse, limit: int) -> Receipt:
    """The receipt for a 2xx. If the answer cannot be kept, the receipt has the reason: the call itself succeeded."""
    if response.trouble is not None:
        return Receipt(
            Verdict.REJECTED, f"{_name(response.status)}, but {response.trouble} in the middle of its answer"
        )
    if response.is_cut:
        return Receipt(Verdict.CONFIRMED, f"its answer is longer than {limit} bytes and was not kept")
    if not response.body:
        return CONFIRMED
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        return Receipt(Verdict.CONFIRMED, "its answer has an encoding that was not asked for; it was not kept")
    content_type = response.headers.get("content-type", "").strip()
    answer = Answer(response.body, content_type) if content_type else Answer(response.body)
    return Receipt(Verdict.CONFIRMED, answer=answer)


def _reason(response: HttpResponse) -> str:
    """The status, and a problem's title. The rest of a body may echo a secret of the request, and is not quoted."""
    parts = [_name(response.status)]
    if 300 <= response.status < 400:
        parts.append("redirects are not followed")
    if title := _title(response):
        parts.append(title)
    return ": ".join(parts)


def _title(response: HttpResponse) -> str:
    """The title of a problem's kind (RFC 9457, section 3.1.3), in one line; empty if there is none."""
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/problem+json":
        return ""
    try:
        title = msgspec.json.decode(response.body, type=_Problem).title
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return printable(title.strip(), LONGEST_TITLE)


def _name(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
