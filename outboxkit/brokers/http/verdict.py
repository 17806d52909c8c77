"""What a response means for the message that it answers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from outboxkit.brokers import CONFIRMED, Answer, Receipt, Verdict

LONGEST_WAIT = timedelta(hours=1)
"""No `Retry-After` holds a message for longer."""
SHOWN_BYTES = 1024
"""How much of an error's body goes into the reason."""
BUSY = (429, 503)
"""The destination itself says "not now": no attempt of the message."""
UNAUTHORIZED = (401, 403, 407)
"""The sender is refused, not the message: its credentials are missing, wrong, expired, or not enough."""
TRANSIENT = (408, 409, 421, 425)
"""Other answers below 500 after which the same request may succeed: it took too long, the first one is in progress, it
came over a connection that is for others, or it came too early (RFC 9110, sections 15.5.9, 15.5.10 and 15.5.20)."""

Hide = Callable[[str], str]
"""Takes secrets out of a text."""


@dataclass(frozen=True, slots=True)
class Response:
    """What was heard of a response.

    Attributes:
        status: its code.
        headers: under lower-case names.
        body: as much as was wanted of it.
        is_cut: whether there was more.
        trouble: why the body ended before its end, if it did.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_cut: bool = False
    trouble: str | None = None


def judge(response: Response, *, limit: int, now: datetime, hide: Hide = str) -> Receipt:
    """The receipt for one message.

    Args:
        response: what was heard.
        limit: bytes of an answer that are kept, for the reason of one that is longer.
        now: for a `Retry-After` that is a date.
        hide: what the reason is passed through.
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
    """A 413 with a `Retry-After` says that the condition is temporary (RFC 9110, section 15.5.14)."""
    return status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and after is not None


def retry_after(value: str | None, *, now: datetime) -> timedelta | None:
    """How long `Retry-After` (RFC 9110, section 10.2.3) asks to wait: seconds or a date, one hour at most.

    None where it asks for nothing: it is missing, zero, past or garbage.
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


def shown(text: str, hide: Hide = str) -> str:
    """The beginning of a text from outside in one line, whatever is in it, without secrets."""
    cut = hide(text).strip().encode(errors="replace")[:SHOWN_BYTES].decode(errors="ignore")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def _confirmed(response: Response, limit: int, hide: Hide) -> Receipt:
    """A 2xx. The call was made, also if its answer cannot be kept: the reason says so, for who wants the answer."""
    if response.trouble is not None:
        trouble = shown(response.trouble, hide)
        return Receipt(Verdict.REJECTED, f"{_name(response.status)}, but {trouble} in the middle of its answer")
    if response.is_cut:
        return Receipt(Verdict.CONFIRMED, f"its answer is longer than {limit} bytes and was not kept")
    if not response.body:
        return CONFIRMED
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        coded = shown(encoding, hide)[:40]
        return Receipt(
            Verdict.CONFIRMED, f"its answer is encoded as {coded!r}, which nobody asked for; it was not kept"
        )
    content_type = response.headers.get("content-type", "").strip()
    answer = Answer(response.body, content_type) if content_type else Answer(response.body)
    return Receipt(Verdict.CONFIRMED, answer=answer)


def _reason(response: Response, hide: Hide) -> str:
    parts = [_name(response.status)]
    if 300 <= response.status < 400:
        parts.append("redirects are not followed")
    if body := shown(response.body.decode(errors="replace"), hide):
        parts.append(body)
    return ": ".join(parts)


def _name(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
