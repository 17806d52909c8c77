"""The HTTP side of an idempotency key, for every framework: headers, problems, and places for waiting duplicates."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256
from threading import Lock
from typing import NamedTuple, TypedDict

from outboxkit import problems
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, InProgress, Mismatch, Outcome, Replay, Response, fingerprint, parse_key
from outboxkit.telemetry import catalogue, metrics


class Places:
    """Places for requests that wait. The duplicates of one caller take half of them, at most.

    Args:
        most: places in all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_one = (most + 1) // 2
        self._waiting: Counter[Hashable] = Counter()
        self._lock = Lock()

    @contextmanager
    def taken(self, caller: Hashable) -> Iterator[bool]:
        """Have a place inside the block, if the value is True. It does not wait for one."""
        with self._lock:
            is_free = self._waiting.total() < self._most and self._waiting[caller] < self._of_one
            if is_free:
                self._waiting[caller] += 1
        try:
            yield is_free
        finally:
            with self._lock:
                self._waiting[caller] -= is_free
                if not self._waiting[caller]:
                    del self._waiting[caller]


KEY = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
EXPIRES = "Idempotency-Expires"
SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""Methods that only read (RFC 9110, section 9.2.1). Their requests need no key."""

MEBIBYTE = 1024 * 1024
QUICK = 64 * 1024
"""Bytes of a body whose fingerprint is computed on the event loop; a larger one is handled in a thread."""
SCOPE_LIMIT = 255

_UNSTORED = frozenset((400, 401, 403, 406, 408, 412, 413, 415, 422, 425, 428, 429))
_ONE_CONNECTION = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer")
) | {"transfer-encoding", "upgrade"}
_ONE_ANSWER = frozenset(("set-cookie", "content-length", "date", "server"))


def is_stored(status: int) -> bool:
    """Whether an answer with this status is remembered.

    2xx, 3xx and 4xx are, unless a corrected or later request with the same key could get another answer. 400, 413, 415
    and 422 are about the form of the request. 401, 403, 406, 412 and 428 are about headers that are not part of the
    fingerprint. 408, 425 and 429 are about the moment. 5xx is never remembered.
    """
    return 200 <= status < 500 and status not in _UNSTORED


class IdempotencyOptions(TypedDict, total=False):
    """The attributes of `Rules`, for functions that pass them on."""

    required: bool
    retention: timedelta
    wait: timedelta
    max_waiting: int
    lease: timedelta | None
    max_body: int
    max_response: int
    stored: Callable[[int], bool]
    store_errors: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an operation for idempotency keys.

    Attributes:
        required: whether a request without a key is refused; otherwise it runs, and nothing is remembered.
        retention: for how long an answer is remembered.
        wait: for how long a duplicate waits for the end of the first; zero: it is refused at once.
        max_waiting: how many duplicates may wait at once, half of them of one caller; others are refused at once.
        lease: for how long a run has the request to itself, in two-step mode; None: atomic mode.
        max_body: bytes of a request's body.
        max_response: bytes of an answer's body.
        stored: whether an answer with this status is remembered.
        store_errors: whether an error that the endpoint raised is remembered, if `stored` allows its status.

    Raises:
        ConfigurationError: a time is not a timedelta or is below zero, or a limit is below one.
    """

    required: bool = True
    retention: timedelta = timedelta(hours=24)
    wait: timedelta = timedelta(0)
    max_waiting: int = 20
    lease: timedelta | None = None
    max_body: int = MEBIBYTE
    max_response: int = MEBIBYTE
    stored: Callable[[int], bool] = is_stored
    store_errors: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("retention", timedelta(seconds=1)),
            ("wait", timedelta(0)),
            ("lease", timedelta(seconds=1)),
        ):
            value = getattr(self, name)
            if not isinstance(value, timedelta) and not (value is None and name == "lease"):
                raise ConfigurationError(f"{name} is {value!r}; a timedelta is accepted, such as timedelta(seconds=5)")
            if value is not None and value < least:
                raise ConfigurationError(f"{name} is {value}; {least} or more is accepted")
        for name, unit in (("max_body", " of bytes"), ("max_response", " of bytes"), ("max_waiting", "")):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; a number{unit} from 1 is accepted")


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """The part of a request that makes its fingerprint and its key.

    Attributes:
        method: the HTTP method.
        template: the path as the route declares it.
        values: the values of the template's names in the path.
        query: the parameters in their order.
        keys: the lines of the header Idempotency-Key.
        content_type: the header's value.
        body: the bytes.
    """

    method: str
    template: str
    values: Mapping[str, str]
    query: Sequence[tuple[str, str]]
    keys: Sequence[str]
    content_type: str | None
    body: bytes


class RequestKey(NamedTuple):
    """The request as the ledger knows it."""

    scope: str
    key: str
    fingerprint: bytes


def refused(problem: problems.Problem) -> problems.Problem:
    """The same problem, the answer to a request that is refused for its key or its body; it is recorded."""
    metrics.measure(catalogue.HTTP_REQUESTS, 1, {"outcome": "refused"})
    return problem


def keyed_request(incoming: IncomingRequest, rules: Rules) -> RequestKey | None:
    """The ledger's key for a request; None: it has no idempotency key, and needs none.

    Raises:
        Problem: 400, the key is missing or not valid; 413, the body is too large.
    """
    if not incoming.keys and not rules.required:
        return None
    try:
        key = parse_key(incoming.keys)
    except problems.Problem as problem:
        raise refused(problem) from None
    if len(incoming.body) > rules.max_body:
        raise refused(problems.body_too_large(rules.max_body))
    digest = fingerprint(
        method=incoming.method,
        template=incoming.template,
        values=incoming.values,
        query=incoming.query,
        content_type=incoming.content_type,
        body=incoming.body,
    )
    return RequestKey(_short(f"{incoming.method} {incoming.template}"), key, digest)


async def ask_aside(incoming: IncomingRequest, rules: Rules) -> RequestKey | None:
    """`keyed_request`, away from the event loop if the body is large.

    Raises:
        Problem: as of `keyed_request`.
    """
    if QUICK < len(incoming.body) <= rules.max_body:
        return await asyncio.to_thread(keyed_request, incoming, rules)
    return keyed_request(incoming, rules)


def is_longer(announced: str | None, limit: int) -> bool:
    """Whether a header Content-Length announces more than so many bytes. One that is not a number does not count."""
    digits = (announced or "").strip().lstrip("0")
    return digits.isascii() and digits.isdecimal() and (len(digits) > len(str(limit)) or int(digits) > limit)


_OUTCOMES: Mapping[type, str] = {Fresh: "fresh", Replay: "replayed", InProgress: "in progress", Mismatch: "mismatch"}


def count(outcome: Outcome) -> None:
    """Record the outcome of a request. Call it once for each request."""
    metrics.measure(catalogue.HTTP_REQUESTS, 1, {"outcome": _OUTCOMES[type(outcome)]})


def answered(outcome: Replay | InProgress | Mismatch) -> Response:
    """The answer to a request that is not new: the remembered one, with headers that mark it as a repetition.

    Raises:
        Problem: 409, it has not been answered yet; 422, the key belongs to another request.
    """
    match outcome:
        case Replay(response, expires_at):
            repeated = ((REPLAYED, "true"), (EXPIRES, _http_date(expires_at)))
            return Response(response.status, (*response.headers, *repeated), response.body)
        case InProgress(after):
            raise problems.in_progress(after)
        case Mismatch():
            raise problems.key_reused()


def stored_part(status: int, headers: Iterable[tuple[str, str]], body: bytes, rules: Rules) -> Response:
    """The part of an answer that is remembered, without headers of one connection or of one answer alone.

    Raises:
        ConfigurationError: the body is too large.
    """
    if len(body) > rules.max_response:
        raise ConfigurationError(
            f"the response has {len(body)} bytes, and max_response allows {rules.max_response}: "
            "raise it, or answer with a link to the content"
        )
    fields = tuple(headers)
    named = {
        name.strip().lower() for field, value in fields if field.lower() == "connection" for name in value.split(",")
    }
    gone = _ONE_CONNECTION | _ONE_ANSWER | named
    remembered = (
        (name, value)
        for name, value in fields
        if name.lower() not in gone and not name.lower().startswith("idempotency-")
    )
    return Response(status, tuple(remembered), body)


def expires_header(fresh: Fresh) -> tuple[str, str]:
    """The header of the first answer that says until when it is remembered."""
    return EXPIRES, _http_date(fresh.expires_at)


def _short(scope: str) -> str:
    """The scope, or, if the ledger cannot keep it as it is, a readable part of it and its digest."""
    readable = scope.encode(errors="replace").decode().replace("\0", "?")
    if readable == scope and len(scope) <= SCOPE_LIMIT:
        return scope
    digest = sha256(scope.encode(errors="surrogatepass")).hexdigest()
    return f"{readable[: SCOPE_LIMIT - len(digest) - 1]}~{digest}"


def _http_date(moment: datetime) -> str:
    """The date as in RFC 9110, section 5.6.7."""
    return format_datetime(moment.astimezone(UTC), usegmt=True)
