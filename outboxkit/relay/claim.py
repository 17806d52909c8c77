"""Claiming: a batch is one transaction, two if rows do not stay locked.

Its rows are locked, and planned by predecessors. The claim starts at the `floor`, and in the relay's own share of the
keys, `shares`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import takewhile
from operator import itemgetter
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import statements
from outboxkit.database.driver_rows import DriverRows, fetch
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.relay.floor import SMALL_GAP, SMALL_GAP_SECONDS, Floor
from outboxkit.relay.order import Batch, ClaimedRow, Predecessors, read_claimed
from outboxkit.relay.shares import ContendedKeys, Shares
from outboxkit.statements.claim import PAYLOAD_PLACE
from outboxkit.statements.dialects import is_server

QUERY_SECONDS = 0.1
"""The interval at which a busy relay queries due rows, and the writers that keep the floor down."""
FIRST_ROWS, BATCH_BYTES = 100, 16 * 1024 * 1024
"""A batch is limited by rows and by about 16 MiB. The first claim takes 100 rows to learn their average size.

Of larger rows behind small ones it keeps only as many as these bytes; one message may go over them.
"""
FEW_ROWS = 16
"""Fewer rows than these in a batch say that no more are ready."""
PROBE_ROWS = 20
"""The maximum number of rows of a claim that leaves the relay's share. The other relays miss them for a moment."""
CLAIMS_IN_SHARE = 3
"""The number of claims for which a relay keeps to its share of the keys after a full one. Then it may take any row."""
SWEEP_SECONDS, SWEEP_SHARE = 2.0, 0.05
"""The minimum interval of claims from position 0, below the floor, and the maximum share of its time for them."""


class Interval:
    """A reminder that is due at the first call, and then again after so many seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = float("-inf")

    def is_over(self, seconds: float) -> bool:
        """Whether so many seconds have passed since the last time that they had; if so, the next interval begins."""
        now = self._monotonic()
        if now - self._last < seconds:
            return False
        self._last = now
        return True


class Claimer:
    """Claims one batch after another, above the floor.

    Args:
        size: the maximum number of rows in a batch; fewer if they are large.
        keeps_locks: keep the transaction open, and the rows locked, until the batch is settled.
        most_shares: the maximum number of relays of the destination that work off a backlog together; None: any.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        size: int,
        *,
        destination: str = DEFAULT_DESTINATION,
        keeps_locks: bool = True,
        most_shares: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._is_server = is_server(engine.dialect.name)
        self.destination = destination
        self._keeps_locks = keeps_locks
        self._size = size
        self._limit = min(size, FIRST_ROWS)
        self._monotonic = monotonic
        self.floor = Floor()
        self._since_due, self._since_floor = Interval(monotonic), Interval(monotonic)
        self._found_due = False
        self._next_sweep = float("-inf")
        self._contended, self._left_out = ContendedKeys(monotonic), list[str]()
        self.shares = Shares(monotonic, most_shares)
        self._claims_in_share = 1
        self._claim_ready, self._claim_due = statements.claim.claim_ready(), statements.claim.claim_due()
        self._claim_ready_of_share = statements.claim.claim_ready_of_share()
        self._claim_due_of_share = statements.claim.claim_due_of_share()
        self._join_shares = statements.claim.join_shares()
        self._payloads = statements.claim.payloads(engine.dialect.name)
        self._predecessors = statements.claim.predecessors(engine.dialect.name)
        self._writers, self._oldest_ready = statements.claim.writers(), statements.claim.oldest_ready()

    @property
    def can_claim_ahead(self) -> bool:
        """Whether a batch can be claimed while another one is open. SQLite has one writer at a time."""
        return self._is_server

    @property
    def stands_by(self) -> bool:
        """Whether others work off the backlog, and claims return nothing until one of them is gone."""
        return self.shares.stands_by

    @property
    def leaves_rows(self) -> bool:
        """Whether the latest claim left out rows that a later one may return: of other shares, of contended keys."""
        return self.shares.count > 1 or bool(self._left_out)

    def sweep(self) -> None:
        """Have the next claim begin at position 0, below the floor."""
        self._next_sweep = float("-inf")

    def reset(self) -> None:
        """Forget the floor: after an error this may be another database, such as a standby."""
        self.floor = Floor()
        self._contended = ContendedKeys(self._monotonic)
        self.shares.leave()
        self._claims_in_share = 1
        self.sweep()

    async def claim(
        self, as_of: datetime, *, now: datetime, beside: Batch | None = None, most: int | None = None
    ) -> Batch:
        """Lock the next rows and plan their batch. If `keeps_locks` is off, the locks end with this call.

        Args:
            as_of: the time by which rows are due.
            now: the time by which rows have expired.
            beside: the batch that this relay is publishing at the moment. What it sends does not block later rows of
                the same keys, and rows that it holds and does not send block them.
            most: the maximum number of rows, if it is not to be a whole batch.
        """
        blocked, own_rows = (beside.blocked_rows, [*beside.send, *beside.expired]) if beside is not None else ((), [])
        connection = await self._engine.connect()
        try:
            await connection.begin()
            await self._find_share(connection)
            self._left_out = list({*self._contended.keys(), *blocked}) if self._is_server else []
            rows, floor, is_few = ([], 0, True) if self.stands_by else await self._lock(connection, as_of, most)
            predecessors = await self._find_predecessors(connection, rows, own_rows, floor)
            if not self._keeps_locks:
                await connection.rollback()
        except (Exception, asyncio.CancelledError):
            await connection.close()
            raise
        batch = Batch(connection, rows)
        batch.plan(predecessors, now=now)
        if rows:
            self._contended.saw(len(rows), batch.blocked_rows)
        batch.is_last = is_few and not batch.blocked_rows and not self.leaves_rows
        return batch

    async def _find_share(self, connection: AsyncConnection) -> None:
        """Take part in the shares after a full claim, until so many claims were short; the first claim counts as full.

        After that, keep to the share for as long as another relay takes part.
        """
        takes_part = self._claims_in_share > 0
        if not self._is_server or not (takes_part or self.shares.count > 1):
            return
        number = self.shares.number if takes_part and not self.shares.stands_by else None
        parameters = {"destination": self.destination, "number": number}
        self.shares.saw(await fetch(connection, self._join_shares, parameters))
        if not takes_part and not self.shares.has_others:
            self._leave_share()

    def _leave_share(self) -> None:
        """Have the next claim take a few rows of any key: the other relays may be about to claim them, too."""
        self.shares.leave()
        self._limit = min(self._limit, PROBE_ROWS)

    async def _lock(
        self, connection: AsyncConnection, as_of: datetime, most: int | None
    ) -> tuple[list[ClaimedRow], int, bool]:
        """Due rows and ready rows in position order, the floor above which ready ones were searched, and if few are.

        At least half of a batch is for ready rows, if there are any. Due rows are queried every `QUERY_SECONDS`, in a
        claim without ready rows, and as long as there are some.
        """
        is_sweep = self._monotonic() >= self._next_sweep
        if is_sweep and self.shares.count > 1 and self.shares.stand_still:
            self._leave_share()
        limit = self._limit if most is None else min(self._limit, most)
        half = (limit + 1) // 2
        asks = self._found_due or self._since_due.is_over(QUERY_SECONDS)
        due = await self._due(connection, as_of, half) if asks else []
        ready, floor = await self._ready(connection, max(limit - len(due), 1), is_sweep=is_sweep)
        room = limit - len(ready)
        if half <= len(due) < room or not (asks or ready):
            positions = {row[0] for row in due}
            due = [*due, *(row for row in await self._due(connection, as_of, room) if row[0] not in positions)]
        self._found_due = bool(due)
        locked = sorted([*due, *ready], key=itemgetter(0))
        self._claims_in_share = CLAIMS_IN_SHARE if len(locked) >= limit else max(self._claims_in_share - 1, 0)
        rows = read_claimed(await self._read_payloads(connection, locked))
        if rows:
            average = sum(len(row.message.payload) for row in rows) / len(rows)
            self._limit = max(1, min(self._size, round(BATCH_BYTES / max(average, 1))))
        return rows, floor, len(locked) < min(FEW_ROWS, limit) and len(rows) == len(locked)

    async def _read_payloads(self, connection: AsyncConnection, locked: DriverRows) -> Iterator[tuple[Any, ...]]:
        """The rows with those payloads that the claim left out, up to the first for which there is no room."""
        large = [row[0] for row in locked if row[PAYLOAD_PLACE] is None]
        if not large:
            return iter(locked)
        parameters = {"positions": large, "budget": BATCH_BYTES}
        payloads = dict(await fetch(connection, self._payloads, parameters))
        held = takewhile(lambda row: row[PAYLOAD_PLACE] is not None or row[0] in payloads, locked)
        return (
            (*row[:PAYLOAD_PLACE], payloads.get(row[0], row[PAYLOAD_PLACE]), *row[PAYLOAD_PLACE + 1 :]) for row in held
        )

    async def _due(self, connection: AsyncConnection, as_of: datetime, limit: int) -> DriverRows:
        parameters = self._parameters(limit) | {"now": as_of}
        if share := self._share():
            return await fetch(connection, self._claim_due_of_share, parameters | share)
        return await fetch(connection, self._claim_due, parameters)

    def _parameters(self, limit: int) -> dict[str, object]:
        return {"destination": self.destination, "limit": limit, "payload_limit": BATCH_BYTES // self._limit}

    def _share(self) -> dict[str, object]:
        """The parameters of claims that leave out rows; empty if they need not."""
        if not self.leaves_rows:
            return {}
        return {"except_keys": self._left_out, "relays": self.shares.count, "rank": self.shares.rank}

    async def _ready(self, connection: AsyncConnection, limit: int, *, is_sweep: bool) -> tuple[DriverRows, int]:
        if self._is_server and self._is_floor_time():
            await self._raise_floor(connection)
        started = self._monotonic()
        floor = 0 if is_sweep else self.floor.value
        parameters = self._parameters(limit) | {"floor": floor}
        if share := self._share():
            share["last"] = self.shares.last_position
            rows = await fetch(connection, self._claim_ready_of_share, parameters | share)
        else:
            rows = await fetch(connection, self._claim_ready, parameters)
        if is_sweep:
            ended = self._monotonic()
            self._next_sweep = ended + max(SWEEP_SECONDS, (ended - started) / SWEEP_SHARE)
            if rows and rows[0][0] <= self.floor.value:
                self.floor = Floor()
        self.floor.saw(row[0] for row in rows)
        return rows, floor

    def _is_floor_time(self) -> bool:
        is_small = self.floor.gap <= SMALL_GAP and self.shares.count == 1
        return self._since_floor.is_over(SMALL_GAP_SECONDS if is_small else QUERY_SECONDS)

    async def _raise_floor(self, connection: AsyncConnection) -> None:
        writers = await fetch(connection, self._writers, {})
        parameters = {"destination": self.destination, "floor": self.floor.value}
        oldest = await fetch(connection, self._oldest_ready, parameters)
        self.floor.rise((row[0] for row in writers), oldest[0][0])
        self.shares.saw_first(oldest[0][0])

    async def _find_predecessors(
        self, connection: AsyncConnection, rows: Iterable[ClaimedRow], own_rows: Iterable[ClaimedRow], floor: int
    ) -> Mapping[str, Predecessors]:
        last = {row.message.key: row.position for row in rows if row.message.key is not None}
        if not last:
            return {}
        own = [row.position for group in (rows, own_rows) for row in group if row.message.key is not None]
        parameters: dict[str, Any] = {"destination": self.destination, "keys": list(last), "own_positions": own}
        parameters |= {"last_positions": list(last.values()), "floor": floor}
        return {row[0]: Predecessors(*row[1:]) for row in await fetch(connection, self._predecessors, parameters)}
