"""What the ledger says of a request with an idempotency key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


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
        principal: the caller; None: the key is nobody's own.
        key: the idempotency key.
        token: of this run; a later run has another, and then this one may write nothing any more.
        expires_at: until when the answer is remembered, by the database's clock.
        lease: for how long this run has the request to itself; None: as long as its transaction lasts.
        steps: results of the steps that earlier runs have finished, encoded.
        fingerprint: of the request.
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
    """The request was answered before: this is the answer, and until when it is remembered."""

    response: Response
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another run of the same request has not finished; `after` is when its lease ends, where it has one."""

    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used before, for a request with another fingerprint."""


Outcome = Fresh | Replay | InProgress | Mismatch
