"""Requests with an idempotency key, as operators see them: state, lease and status of the answer, never its content."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from outboxkit import statements
from outboxkit.operators.messages import read_now

STATES = ("processing", "done")
WINDOW = 10_000
"""Requests that are read for a list, at most."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A request that the ledger remembers.

    Attributes:
        state: `expired` from `expires_at` on, until the row is pruned.
        scope: the operation, such as `POST /orders`.
        principal: the caller, or a digest of a long name; None: the key is nobody's own.
        response_status: of the answer; None: there is none yet.
        locked_until: the end of the lease of a run in steps; None: there is none.
        expires_at: when the key is new again.
    """

    scope: str
    principal: str | None
    key: str
    state: str
    response_status: int | None
    locked_until: datetime | None
    created_at: datetime
    expires_at: datetime


def list_requests(
    connection: Connection,
    *,
    key: str | None = None,
    scope: str | None = None,
    state: str | None = None,
    limit: int = 50,
) -> list[KnownRequest]:
    """The requests whose keys expire last, at most `limit`; those that match are looked for among the last `WINDOW`."""
    now = read_now(connection)
    wanted = {"of_key": key, "of_scope": scope, "of_state": state, "window": WINDOW, "limit": limit}
    rows = [_known(row, now) for row in connection.execute(statements.idempotency.newest_requests(), wanted)]
    return [row for row in rows if state in (None, row.state)]  # expired ones are behind all others


def find_requests(connection: Connection, key: str, *, limit: int = 50) -> list[KnownRequest]:
    """The requests with this key, in every scope and of every caller."""
    now = read_now(connection)
    rows = connection.execute(statements.idempotency.requests_with_key(), {"of_key": key, "limit": limit})
    return [_known(row, now) for row in rows]


def _known(row: Row[Any], now: datetime) -> KnownRequest:
    state = "expired" if row.expires_at <= now else row.state
    return KnownRequest(**dict(row._mapping) | {"principal": row.principal or None, "state": state})  # noqa: SLF001 - its public view
