"""Writes a settlement: every row of a batch, in the transaction that claimed it or in one that follows.

A row that is gone by then stays gone: no statement brings it back.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements
from outboxkit.codec.rows import to_row
from outboxkit.database.driver_rows import execute_and_commit
from outboxkit.message import DEFAULT_DESTINATION, storable
from outboxkit.relay.decisions import Dead, Settlement
from outboxkit.relay.order import Batch

PARKS_AGAIN = timedelta(seconds=1)
"""The wait of rows that cannot be parked now, because an operator is at the dead letter that parks their key."""


class SettlementWriter:
    """Writes settlements of one destination.

    Args:
        keep: whether published rows are moved to `outboxkit_published` instead of deleted.
    """

    def __init__(self, dialect: str, *, keep: bool, destination: str = DEFAULT_DESTINATION) -> None:
        self._destination = destination
        self._keeps = keep
        self._forget = statements.settle.forget_rows(dialect)
        self._keep_published = statements.settle.keep_published(dialect)
        self._bury, self._hold = statements.settle.bury(dialect), statements.settle.hold_rows(dialect)
        self._park, self._reschedule = statements.settle.park(dialect), statements.settle.reschedule()
        self._add_reply = statements.settle.add_reply()

    async def commit(self, batch: Batch, settlement: Settlement, *, now: datetime) -> None:
        """Settle every row of the batch and commit; the connection returns to its pool in any case.

        Raises:
            sqlalchemy.exc.DBAPIError: nothing is settled, and every row is as it was.
        """
        try:
            await self._write(batch.connection, settlement, now)
        finally:
            await batch.connection.close()

    async def _write(self, connection: AsyncConnection, settlement: Settlement, now: datetime) -> None:
        """All statements, those that delete rows last: others read these rows, and the COMMIT goes with them."""
        if settlement.replies:
            replies = [{"at_position": reply.at_position} | to_row(reply.message) for reply in settlement.replies]
            await connection.execute(self._add_reply, replies)
        if settlement.published and self._keeps:
            await connection.execute(self._keep_published, {"positions": settlement.published})
        for rows in _alike(settlement.dead):
            await self._give_up(connection, rows, now)
        if settlement.failed:
            failed = [
                {
                    "at_position": row.position,
                    "failures": row.failures,
                    "error": storable(row.reason),
                    "due": row.due_at,
                    "now": now if row.failures else None,
                }
                for row in settlement.failed
            ]
            await connection.execute(self._reschedule, failed)
        for due, positions in settlement.waiting.items():
            await connection.execute(self._hold, {"positions": positions, "due": due})
        if settlement.parked:
            parameters = {"positions": settlement.parked, "of_destination": self._destination, "due": now + PARKS_AGAIN}
            await connection.execute(self._park, parameters)
        deletions = [*settlement.discarded, *settlement.published, *(row.position for row in settlement.dead)]
        if deletions:
            await execute_and_commit(connection, self._forget, {"positions": deletions})
        else:
            await connection.commit()

    async def _give_up(self, connection: AsyncConnection, rows: list[Dead], now: datetime) -> None:
        """Copy rows that are alike to the dead letters."""
        first = rows[0]
        parameters = {
            "positions": [row.position for row in rows],
            "reason": str(first.reason),
            "error": storable(first.error),
            "failures": first.failures,
            "parked": first.parked,
            "now": now,
        }
        await connection.execute(self._bury, parameters)


def _alike(dead: Iterable[Dead]) -> list[list[Dead]]:
    """Dead rows in groups that one statement can move."""
    groups: dict[tuple[object, ...], list[Dead]] = {}
    for row in dead:
        groups.setdefault((row.reason, row.error, row.failures, row.parked), []).append(row)
    return list(groups.values())
