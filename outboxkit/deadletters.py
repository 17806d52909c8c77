"""Dead letters: what was given up on is found, replayed or discarded; every row stays, and says by whom.

A page of them is resolved in one transaction: their messages are back in the outbox, the dead letters are marked and
their keys are released, or nothing of it has happened. So it may be killed at any time, and run again.
"""

import asyncio
import getpass
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import migrations, partitions, statements
from outboxkit.message import NAME_LIMIT, storable
from outboxkit.outage import Sleep, pause
from outboxkit.statements.dead import Resolution, Selection

__all__ = ["DeadLetters", "Found", "Resolution", "Resolved", "Selection", "Survey"]

PAGE = 500
"""Dead letters that are resolved in one transaction."""
READ_AHEAD = 10_000
"""Numbers of dead letters that are read at once: each time, all that are left are sorted."""
NAMED = 10
"""Refused dead letters that are named."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest dead letters of a selection, how many there are in all, and the database's time."""

    rows: Sequence[Row[Any]]
    count: int
    now: datetime


@dataclass(frozen=True, slots=True)
class Survey:
    """What a selection has, before anything is done with it.

    Attributes:
        kinds: how many of each side, type and reason, the most first.
        count: all of them.
        replayable: those that can go back into the outbox.
        upto: the highest number: what dies later is no part of it.
        keys: keys that these dead letters park.
        waiting: messages that wait behind these keys.
    """

    kinds: Sequence[tuple[str, str | None, str, int]]
    count: int
    replayable: int
    upto: int
    keys: int
    waiting: int


@dataclass(slots=True)
class Resolved:
    """How far a replay or a discard is.

    Attributes:
        count: dead letters that were resolved.
        released: messages that waited behind them, and are due now.
        refused: numbers of dead letters whose place in the outbox is taken: the same message is there already, or
            another one after positions were given anew.
        refused_count: how many; only the first of them are named.
        complete: whether that is all of the selection.
    """

    count: int = 0
    released: int = 0
    refused: list[int] = field(default_factory=list)
    refused_count: int = 0
    complete: bool = False

    def add(self, page: "Resolved") -> None:
        """Count a page that is committed."""
        self.count, self.released = self.count + page.count, self.released + page.released
        self.refused = [*self.refused, *page.refused][:NAMED]
        self.refused_count += page.refused_count


def _quiet(_: Resolved) -> None:
    pass


class DeadLetters:
    """Reads and resolves dead letters.

    Args:
        engine: for its own connections.
        rate: dead letters a second that are resolved, at most; None for no limit.
        monotonic, sleep: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        rate: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._rate = rate
        self._page = PAGE if rate is None else max(min(PAGE, int(rate)), 1)
        self._monotonic = monotonic
        self._sleep = sleep

    async def now(self) -> datetime:
        """The time by the database's clock, which also gave the dead letters theirs.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(migrations.check)
            return await partitions.clock(connection)

    async def find(self, selection: Selection, *, limit: int) -> Found:
        """The newest `limit` of a selection, without payloads and headers.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(migrations.check)
            rows = (await connection.execute(statements.dead.newest(selection), {"limit": limit})).all()
            kinds = (await connection.execute(statements.dead.count_by_kind(selection))).all()
            return Found(rows, sum(row[3] for row in kinds), await partitions.clock(connection))

    async def read(self, selection: Selection, *, limit: int) -> Sequence[Row[Any]]:
        """The first `limit` of a selection with all they have, the oldest first.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(migrations.check)
            rows: Sequence[Row[Any]] = (
                await connection.execute(statements.dead.whole(selection), {"limit": limit})
            ).all()
            return rows

    async def survey(self, selection: Selection) -> Survey:
        """Count what a selection has, and what waits behind it.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(migrations.check)
            kinds = (await connection.execute(statements.dead.count_by_kind(selection))).all()
            keys, waiting = (await connection.execute(statements.dead.count_released(selection))).one()
        return Survey(
            kinds=sorted((tuple(row[:4]) for row in kinds), key=lambda kind: -kind[3]),
            count=sum(row[3] for row in kinds),
            replayable=sum(row[4] for row in kinds),
            upto=max((row[5] for row in kinds), default=0),
            keys=keys,
            waiting=waiting,
        )

    async def replay(
        self, selection: Selection, stop: asyncio.Event, done: Resolved, progress: Callable[[Resolved], None] = _quiet
    ) -> None:
        """Put the selection's messages back into the outbox: same ids, at the places that they had, due at once.

        In the order of these places. What has no place there, such as the inbox's dead letters, is left alone. What
        waits behind a message stays behind it, and is released once no dead letter before it parks its key. `done`
        tells how far it is, however it ends; `progress` is called with it after each page.

        Raises:
            SchemaError: the tables are missing or old.
        """
        await self._resolve("replayed", replace(selection, side="outbox"), stop, done, progress)

    async def discard(
        self, selection: Selection, stop: asyncio.Event, done: Resolved, progress: Callable[[Resolved], None] = _quiet
    ) -> None:
        """Mark the selection as discarded, of both sides; what waits behind them is released as by `replay`.

        Raises:
            SchemaError: the tables are missing or old.
        """
        await self._resolve("discarded", selection, stop, done, progress)

    async def who(self) -> str:
        """Who resolves: the user of the system, and the database's role where it has roles. No secret."""
        async with self._engine.connect() as connection:
            return await _who(connection)

    async def _resolve(
        self,
        as_: Resolution,
        selection: Selection,
        stop: asyncio.Event,
        done: Resolved,
        progress: Callable[[Resolved], None],
    ) -> None:
        upto, started = (await self.survey(selection)).upto, self._monotonic()
        place = {"after_position": -2, "after_id": 0}
        by = await self.who()
        while not stop.is_set():
            async with self._engine.connect() as connection:
                wanted = {"upto": upto, "limit": READ_AHEAD} | place
                ahead = (await connection.execute(statements.dead.next_numbers(selection), wanted)).all()
            if not ahead:
                done.complete = True
                return
            for first in range(0, len(ahead), self._page):
                if stop.is_set():
                    return
                ids = [row.id for row in ahead[first : first + self._page]]
                async with self._engine.begin() as connection:
                    page = await _resolve_page(connection, as_, ids, by)
                done.add(page)
                progress(done)
                await self._slow_down(done.count, started, stop)
            place = {"after_position": ahead[-1].place, "after_id": ahead[-1].id}

    async def _slow_down(self, count: int, started: float, stop: asyncio.Event) -> None:
        if self._rate is not None:
            early = started + count / self._rate - self._monotonic()
            if early > 0:
                await pause(stop, early, self._sleep)


async def _resolve_page(connection: AsyncConnection, as_: Resolution, ids: Sequence[int], by: str) -> Resolved:
    """Resolve these dead letters, those of them that are still open, in the connection's transaction."""
    dialect, wanted = connection.dialect.name, set(ids)
    if dialect == "postgresql":
        await connection.execute(statements.dead.by_key())
    family = (await connection.execute(statements.dead.with_siblings(dialect), {"ids": ids})).scalars().all()
    locked = (await connection.execute(statements.dead.lock(dialect), {"ids": family})).all()
    chosen = [row for row in locked if row.id in wanted]
    if not chosen:
        return Resolved()
    now, refused = await partitions.clock(connection), list[int]()
    if as_ == "replayed":
        by_place = {row.position: row.id for row in reversed(chosen)}
        back = {"ids": list(by_place.values()), "now": now}
        placed = set((await connection.execute(statements.dead.put_back(dialect), back)).scalars())
        ours = {by_place[place] for place in placed}
        refused = [row.id for row in chosen if row.id not in ours]
        chosen = [row for row in chosen if row.id in ours]
    if chosen:
        marked = {"ids": [row.id for row in chosen], "as_": as_, "by": by, "now": now}
        await connection.execute(statements.dead.resolve(dialect), marked)
    released = 0
    if keys := sorted({row.key for row in chosen if row.parked and row.key is not None}):
        result = await connection.execute(statements.dead.release(dialect), {"keys": keys, "now": now})
        released = result.rowcount
    return Resolved(len(chosen), released, refused, len(refused))


async def _who(connection: AsyncConnection) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        user = f"user {os.getuid()}"
    if connection.dialect.name == "sqlite":
        return storable(user)[:NAME_LIMIT]
    role = (await connection.execute(statements.dead.role())).scalar_one()
    return storable(f"{user} (database role {role})")[:NAME_LIMIT]
