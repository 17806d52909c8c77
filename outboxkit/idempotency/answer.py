"""The ledger's outcomes for a request with an idempotency key, and the encoding of stored answers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec


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
        steps: results of the steps that earlier runs have finished, encoded.
        fingerprint: the request's.
    """

    scope: str
    principal: str | None
    key: str
    token: str
    expires_at: datetime
    lease: timedelta | None = None
    steps: Mapping[str, bytes] = field(default_factory=dict)
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


Outcome = Fresh | Replay | InProgress | Mismatch


STATUSES = range(100, 600)

_HEADERS = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_UNSENDABLE = re.compile(r"[\r\n\0]|[^\0-\xff]")
_STEPS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def answer_of(response: Response) -> dict[str, Any]:
    """The answer as parameters of the statement that records it.

    Raises:
        TypeError: the status is not an int, a header not a pair of str, or the body not bytes.
        ValueError: HTTP has no such status, or a header has a line break, a NUL, or a character outside Latin-1.
    """
    status, headers, body = response.status, response.headers, response.body
    if not isinstance(status, int) or isinstance(status, bool):
        raise TypeError(f"the response's status is {status!r}; an int is accepted")
    if status not in STATUSES:
        raise ValueError(f"the response's status is {status}; {STATUSES[0]} to {STATUSES[-1]} are accepted")
    if not isinstance(body, bytes):
        raise TypeError(f"the response's body is {type(body).__name__}; bytes are accepted")
    return {"status": int(status), "headers": _encode_headers(headers), "body": body}


def response_of(row: Any) -> Response:
    """The answer that a row keeps."""
    return Response(row.response_status, _HEADERS.decode(row.response_headers), bytes(row.response_body))


def encode_steps(steps: Mapping[str, bytes]) -> bytes:
    """Results, each of them JSON, by the name of their step."""
    return msgspec.json.encode({name: msgspec.Raw(result) for name, result in steps.items()})


def decode_steps(stored: bytes | None) -> dict[str, bytes]:
    """The results that `encode_steps` has encoded."""
    return {} if stored is None else {name: bytes(result) for name, result in _STEPS.decode(stored).items()}


def decode_result(stored: bytes) -> Any:
    """The result of one step, as JSON gives it back."""
    return msgspec.json.decode(stored)


def _encode_headers(headers: Any) -> bytes:
    pairs = [tuple(pair) if isinstance(pair, tuple | list) else pair for pair in headers]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise TypeError(f"header {pair!r} of the response is not a pair of a name and a value, both str")
        if _UNSENDABLE.search("".join(pair)):
            raise ValueError(
                f"header {pair[0]!a} of the response holds a line break, a NUL, or a character outside Latin-1, "
                "which no server sends"
            )
    return msgspec.json.encode(pairs)
