"""One batch is one transaction, two where rows are not held: rows claimed, and lined up by what stands before them."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import statements
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.relay.floor import Floor
from outboxkit.relay.order import BatchPlan, ContendedKeys, Predecessors, plan_batch
from outboxkit.relay.rows import Claimed, fetch, read

LOOK_SECONDS = 0.1
"""How often a busy relay looks for due rows and for what raises the floor."""
FIRST_ROWS, BATCH_BYTES = 100, 16 * 1024 * 1024
"""A batch has as many rows as were asked for, but not many more bytes than this; the first one finds out."""
SWEEP_SECONDS, SWEEP_SHARE = 2.0, 0.05
"""How often, at most, and for which share of the time a relay looks below the floor."""


@dataclass(slots=True)
class ClaimedBatch:
    """Rows that are locked by this connection's open transaction, or not at all where the batches are not held."""

    connection: AsyncConnection
    rows: list[Claimed] = field(default_factory=list)
    lineup: BatchPlan = field(default_factory=BatchPlan)

    async def give_back(self) -> None:
        """End the transaction without a change: every row is as it was."""
        await self.connection.close()


class Every:
    """A reminder that comes at the first call, and then again once so many seconds have gone by."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._last = float("-inf")

    def __call__(self) -> bool:
        """Whether it is time again."""
        now = self._monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Claimer:
    """Claims batches one after another, and knows from where on to look.

    Args:
        engine: for a connection a batch.
        size: rows claimed at once, at most; fewer where they are large.
        destination: whose rows are claimed.
        hold: keep the transaction open, and the rows locked, until the batch is settled.
        monotonic: seconds, for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        size: int,
        *,
        destination: str = DEFAULT_DESTINATION,
        hold: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._dialect = engine.dialect.name
        self._destination = destination
        self._hold = hold
        self._size = size
        self._limit = min(size, FIRST_ROWS)
        self._monotonic = monotonic
        self.floor = Floor()
        self._time_for_due, self._time_for_floor = Every(LOOK_SECONDS, monotonic), Every(LOOK_SECONDS, monotonic)
        self._next_sweep = float("-inf")
        self._avoidance = ContendedKeys(monotonic)
        self._claim_ready, self._claim_ready_but = statements.claim.claim_ready(), statements.claim.claim_ready_but()
        self._claim_due, self._claim_due_but = statements.claim.claim_due(), statements.claim.claim_due_but()
        self._standing_before = statements.claim.standing_before(self._dialect)
        self._writers, self._oldest_ready = statements.claim.writers(), statements.claim.oldest_ready()

    @property
    def may_be_ahead(self) -> bool:
        """Whether a batch can be claimed while another one is open: SQLite has one writer at a time."""
        return self._dialect != "sqlite"

    @property
    def is_avoiding(self) -> bool:
        """Whether rows are left out because others have their keys in their hands."""
        return bool(self._avoidance.keys())

    def sweep(self) -> None:
        """Have the next claim look below the floor."""
        self._next_sweep = float("-inf")

    def start_over(self) -> None:
        """Forget what is known of the table: after an error it may be another one, such as a standby's."""
        self.floor = Floor()
        self.sweep()

    async def claim(self, as_of: datetime, *, now: datetime, mine: Iterable[Claimed] = ()) -> ClaimedBatch:
        """Lock the next rows and line them up. The locks end with this where the batches are not held.

        Args:
            as_of: rows that are due by then.
            now: what has expired by then is not published.
            mine: rows that this relay is publishing at the moment; nothing has to wait for them.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is away, or refused.
        """
        connection = await self._engine.connect()
        try:
            await connection.begin()
            rows, floor = await self._lock(connection, as_of)
            before = await self._before(connection, rows, mine, floor)
            if not self._hold:
                await connection.rollback()
        except BaseException:
            await connection.close()
            raise
        lineup = plan_batch(rows, before, now=now)
        if rows:
            self._avoidance.saw(len(rows), lineup.blocked)
        return ClaimedBatch(connection, rows, lineup)

    async def _lock(self, connection: AsyncConnection, as_of: datetime) -> tuple[list[Claimed], int]:
        """Due rows and ready rows, in position order, and the floor above which the latter were looked for.

        At least half of a batch is for ready rows, if there are any.
        """
        half = (self._limit + 1) // 2
        due = await self._due(connection, as_of, half) if self._time_for_due() else []
        ready, floor = await self._ready(connection, max(self._limit - len(due), 1))
        if (room := self._limit - len(ready)) > len(due):
            known = {row.position for row in due}
            due += [row for row in await self._due(connection, as_of, room) if row.position not in known]
        rows = sorted([*due, *ready], key=lambda row: row.position)
        if rows:
            average = sum(len(row.message.payload) for row in rows) / len(rows)
            self._limit = max(1, min(self._size, round(BATCH_BYTES / max(average, 1))))
        return rows, floor

    async def _due(self, connection: AsyncConnection, as_of: datetime, limit: int) -> list[Claimed]:
        given: dict[str, object] = {"destination": self._destination, "now": as_of, "limit": limit}
        if avoided := self._avoidance.keys():
            return read(await fetch(connection, self._claim_due_but, given | {"but": avoided}))
        return read(await fetch(connection, self._claim_due, given))

    async def _ready(self, connection: AsyncConnection, limit: int) -> tuple[list[Claimed], int]:
        if self._dialect == "postgresql" and self._time_for_floor():
            await self._raise_floor(connection)
        started = self._monotonic()
        below = started >= self._next_sweep
        floor = 0 if below else self.floor.value
        given: dict[str, object] = {"destination": self._destination, "floor": floor, "limit": limit}
        if avoided := self._avoidance.keys():
            rows = read(await fetch(connection, self._claim_ready_but, given | {"but": avoided}))
        else:
            rows = read(await fetch(connection, self._claim_ready, given))
        if below:
            ended = self._monotonic()
            self._next_sweep = ended + max(SWEEP_SECONDS, (ended - started) / SWEEP_SHARE)
            if rows and rows[0].position <= self.floor.value:
                self.floor = Floor()
        self.floor.saw(row.position for row in rows)
        return rows, floor

    async def _raise_floor(self, connection: AsyncConnection) -> None:
        found = await fetch(connection, self._writers, {})
        given = {"destination": self._destination, "floor": self.floor.value}
        oldest = await fetch(connection, self._oldest_ready, given)
        self.floor.look((row[0] for row in found), oldest[0][0])

    async def _before(
        self, connection: AsyncConnection, rows: Iterable[Claimed], mine: Iterable[Claimed], floor: int
    ) -> Mapping[str, Predecessors]:
        last = {row.message.key: row.position for row in rows if row.message.key is not None}
        if not last:
            return {}
        held = [row.position for group in (rows, mine) for row in group if row.message.key is not None]
        given: dict[str, Any] = {"destination": self._destination, "keys": list(last), "mine": held}
        if self._dialect == "postgresql":
            given |= {"uptos": list(last.values()), "floor": floor}
        return {row[0]: Predecessors(*row[1:]) for row in await fetch(connection, self._standing_before, given)}
