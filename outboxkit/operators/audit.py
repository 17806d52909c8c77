"""The audit trail: each action of an operator is a row of `outboxkit_audit`, with its operator, filter and result.

An action that is one transaction writes its row in it. One that takes many writes its row before the first. What
resolves dead letters or changes waiting messages counts in each of them, so that the count is right even if it is
killed. A replay of kept messages counts every two seconds, and a prune at its end.
"""

import asyncio
import getpass
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, Row
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit.errors.failures import first_line
from outboxkit.message import LAST_MOMENT, NAME_LIMIT, storable
from outboxkit.operators import sql
from outboxkit.statements.dialects import is_server

DONE, STOPPED = "done", "stopped"
"""The usual results. An action that has none yet is running, or was killed."""
MOST_NAMED = 100
"""Values of a list in a filter that are kept; of the others their number."""
_SECRET = re.compile(r"://[^\s\"]*@")
"""User and password of a URL. They may hold any character, if nobody escaped them: up to the last `@` of the word."""


@dataclass(frozen=True, slots=True)
class AuditedAction:
    """An action of an operator, as it was recorded.

    Attributes:
        started_at, ended_at: by the database's clock; without an end it is running, or was killed.
        result: `done`, `stopped`, or what went wrong; None: it has not ended.
    """

    id: int
    action: str
    operator: str
    filter: Mapping[str, Any]
    started_at: datetime
    ended_at: datetime | None
    count: int
    result: str | None


def system_user() -> str:
    """The name of the account that runs this process, or its number: a container's user often has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def who(connection: Connection, by: str | None = None) -> str:
    """The name that is recorded: `by` or the user of the system, and the database's role if it has roles."""
    user = by or system_user()
    if not is_server(connection.dialect.name):
        return storable(user)[:NAME_LIMIT]
    role = connection.execute(sql.resolve.role()).scalar_one()
    proven = storable(f" (database role {role})")
    return storable(user)[: NAME_LIMIT - len(proven)] + proven


def redacted(text: str) -> str:
    """The text without users and passwords of URLs, as PostgreSQL can store it."""
    return storable(_SECRET.sub("://", text))


def filter_of(selection: Any) -> dict[str, Any]:
    """The fields of a selection that say something."""
    values = {field.name: getattr(selection, field.name) for field in fields(selection)}
    return {name: value for name, value in values.items() if value not in (None, (), frozenset(), False)}


def record_action(
    connection: Connection,
    action: str,
    filter_: Mapping[str, Any],
    *,
    by: str,
    count: int = 0,
    result: str | None,
    form: str | None = None,
) -> int:
    """Write the row of an action, in the connection's transaction; returns its number.

    Raises:
        IntegrityError: the form has begun another action.
    """
    row = {"action": action, "operator": storable(by)[:NAME_LIMIT], "filter": _json(filter_)}
    values = row | {"form": form, "counted": count, "outcome": None if result is None else redacted(result)}
    number: int = connection.execute(sql.actions.insert_action(connection.dialect.name), values).scalar_one()
    return number


def read_actions(
    connection: Connection, *, since: datetime, limit: int, before: tuple[datetime, int] | None = None
) -> list[AuditedAction]:
    """The newest actions since this time, at most `limit`; `before` is the start and the number of a later one."""
    before_at, before_id = before or (LAST_MOMENT, 0)
    asked = {"since": since, "limit": limit, "before_at": before_at, "before_id": before_id}
    return [_action_of(row) for row in connection.execute(sql.actions.newest_actions(), asked)]


def read_action(connection: Connection, number: int) -> AuditedAction | None:
    """The action with this number."""
    row = connection.execute(sql.background.one_action(), {"of": number}).one_or_none()
    return None if row is None else _action_of(row)


def _action_of(row: Row[Any]) -> AuditedAction:
    times = (row.started_at, row.ended_at)
    return AuditedAction(row.id, row.action, row.operator, _read_filter(row.filter), *times, row.affected, row.result)


class RunningAction:
    """An action that takes many transactions.

    Attributes:
        uncounted: messages that the row's count has not got yet.
        place: up to where it has come, if another process would need that to go on.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.result, self.uncounted = DONE, 0
        self.place: tuple[datetime, int] | None = None

    async def count(self, connection: AsyncConnection, more: int) -> None:
        """Add to the row's count, in the connection's transaction."""
        await connection.execute(sql.actions.count_action(), {"of": self.number, "counted": more})

    async def write(self, engine: AsyncEngine) -> None:
        """Count what is uncounted, in a transaction of its own. If the database is away, it stays uncounted."""
        with suppress(SQLAlchemyError, OSError):
            async with engine.begin() as connection:
                more = self.uncounted
                await self.count(connection, more)
            self.uncounted -= more


@asynccontextmanager
async def recorded(
    engine: AsyncEngine, action: str, filter_: Mapping[str, Any], *, by: str | None
) -> AsyncIterator[RunningAction]:
    """The row of an action, from before the block until it has ended, however it ends."""
    async with engine.begin() as connection:

        def begin(plain: Connection) -> int:
            return record_action(plain, action, filter_, by=who(plain, by), result=None)

        running = RunningAction(await connection.run_sync(begin))
    try:
        yield running
    except (Exception, asyncio.CancelledError) as error:
        is_stop = isinstance(error, asyncio.CancelledError)
        running.result = STOPPED if is_stop else f"failed: {first_line(error)}"
        with suppress(SQLAlchemyError, OSError):  # the database may be what failed; the row says that it has not ended
            await _end(engine, running)
        raise
    await _end(engine, running)


async def finish_action(connection: AsyncConnection, running: RunningAction) -> None:
    """Write the end of an action, in the connection's transaction."""
    outcome = {"of": running.number, "outcome": redacted(running.result), "counted": running.uncounted}
    await connection.execute(sql.actions.end_action(connection.dialect.name), outcome)


async def _end(engine: AsyncEngine, running: RunningAction) -> None:
    async with engine.begin() as connection:
        await finish_action(connection, running)


def _read_filter(text: str) -> dict[str, Any]:
    """The filter of a row; its whole text under one name if it was not written here."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        return {"unreadable": text}


def _json(filter_: Mapping[str, Any]) -> str:
    return redacted(msgspec.json.encode({name: _short(value) for name, value in filter_.items()}).decode())


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list | tuple | frozenset):
        more = [f"and {len(value) - MOST_NAMED} more"] if len(value) > MOST_NAMED else []
        return [_short(one) for one in islice(value, MOST_NAMED)] + more
    return value
