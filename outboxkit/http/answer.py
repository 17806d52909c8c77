"""Answers: the ledger's outcomes for a request, what is remembered of an answer, and how a replay is marked."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec

from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from outboxkit.telemetry import catalogue, metrics


@dataclass(frozen=True, slots=True)
class Response:
    """An answer as it is remembered.

    Attributes:
        status: the HTTP status code.
        headers: names and values, in their order; a name may come more than once.
        body: the bytes.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Fresh:
    """The request is new, or its last run did not finish: do it, and `complete` it with this.

    Attributes:
        scope: the operation.
        principal: the caller; None: all callers share the key.
        key: the idempotency key.
        token: the run's own. Once a later run has another, this one may write nothing any more.
        expires_at: the end of the answer's retention, by the database's clock.
        lease: for how long this run has the request to itself; None: as long as its transaction lasts.
        steps: results of the steps that earlier runs have finished, as a JSON object; None: there are none.
        fingerprint: the request's.
    """

    scope: str
    principal: str | None
    key: str
    token: str
    expires_at: datetime
    lease: timedelta | None = None
    steps: bytes | None = None
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Replay:
    """The request was answered before: this is the answer, with the end of its retention."""

    response: Response
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another run of the same request has not finished. `after` is the rest of its lease, if it has one."""

    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used before, for a request with another fingerprint."""


Judgement = Fresh | Replay | InProgress | Mismatch

REPLAYED_HEADER = "Idempotency-Replayed"
EXPIRES_HEADER = "Idempotency-Expires"

_STATUSES = range(100, 600)
_HEADERS = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_UNSENDABLE = re.compile(r"[\r\n\0]|[^\0-\xff]")
_NAMES: Mapping[type, str] = {Fresh: "fresh", Replay: "replayed", InProgress: "in progress", Mismatch: "mismatch"}
_UNSTORED = frozenset((400, 401, 403, 406, 408, 412, 413, 415, 422, 425, 428, 429))
_OF_THIS_ANSWER = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer")
) | {"transfer-encoding", "upgrade", "set-cookie", "content-length", "date", "server"}


def is_stored(status: int) -> bool:
    """Whether an answer with this status is remembered: 2xx, 3xx and 4xx, unless a better or later request may succeed.

    Decision 29 says why, status by status.
    """
    return 200 <= status < 500 and status not in _UNSTORED


def remembered_part(status: int, headers: Iterable[tuple[str, str]], body: bytes, limit: int) -> Response:
    """The part of an answer that is remembered, without headers of one connection or of one answer alone.

    Raises:
        ConfigurationError: the body has more than `limit` bytes.
    """
    if len(body) > limit:
        raise ConfigurationError(
            f"the response has {len(body)} bytes, and max_response allows {limit}: "
            "raise it, or answer with a link to the content"
        )
    fields = [(name, value, name.lower()) for name, value in headers]
    gone = {each.strip().lower() for _, value, name in fields if name == "connection" for each in value.split(",")}
    remembered = (
        (name, value)
        for name, value, lower in fields
        if lower not in _OF_THIS_ANSWER and lower not in gone and not lower.startswith("idempotency-")
    )
    return Response(status, tuple(remembered), body)


def answered(outcome: Replay | InProgress | Mismatch) -> Response:
    """The answer to a request that is not new: 409 or 422, or the remembered one, marked as a repetition."""
    match outcome:
        case Replay(response, expires_at):
            repeated = ((REPLAYED_HEADER, "true"), (EXPIRES_HEADER, _http_date(expires_at)))
            return Response(response.status, (*response.headers, *repeated), response.body)
        case InProgress(after):
            return problem_response(problems.in_progress(after))
        case Mismatch():
            return problem_response(problems.key_reused())


def problem_response(problem: problems.Problem) -> Response:
    """A problem document."""
    return Response(problem.status, (("Content-Type", problems.MEDIA_TYPE), *problem.headers), problem.body())


def expires_header(fresh: Fresh) -> tuple[str, str]:
    """The header of the first answer that says until when it is remembered."""
    return EXPIRES_HEADER, _http_date(fresh.expires_at)


def count(outcome: Judgement) -> None:
    """Record the outcome of a request. Call it once for each request."""
    metrics.measure(catalogue.HTTP_REQUESTS, 1, {"outcome": _NAMES[type(outcome)]})


def columns_of(response: Response) -> dict[str, Any]:
    """The answer as parameters of the statement that records it.

    Raises:
        TypeError: the body is not bytes, or a header not a pair of str.
        ValueError: HTTP has no such status, or a header has a line break, a NUL, or a character outside Latin-1.
    """
    status = response.status
    if not isinstance(status, int) or status not in _STATUSES:
        raise ValueError(f"the response's status is {status!r}; {_STATUSES[0]} to {_STATUSES[-1]} are accepted")
    if not isinstance(response.body, bytes):
        raise TypeError(f"the response's body is {type(response.body).__name__}; bytes are accepted")
    for name, value in response.headers:
        if _UNSENDABLE.search(name + value):
            raise ValueError(
                f"header {name!a} of the response holds a line break, a NUL, or a character outside Latin-1, which no "
                "server sends"
            )
    return {"status": int(status), "headers": msgspec.json.encode(response.headers), "body": response.body}


def response_of(row: Any) -> Response:
    """The answer that a row keeps."""
    return Response(row.response_status, _HEADERS.decode(row.response_headers), bytes(row.response_body))


async def send_response(send: Callable[[dict[str, Any]], Any], response: Response) -> None:
    """Send a whole answer over ASGI."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    if response.status not in (204, 304) and all(name != b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def _http_date(moment: datetime) -> str:
    """The date as in RFC 9110, section 5.6.7."""
    return format_datetime(moment.astimezone(UTC), usegmt=True)
