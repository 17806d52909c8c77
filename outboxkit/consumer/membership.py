"""The processes that consume an ordered queue, as the database knows them, and the number of shards that they share."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import Row
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import ids, statements
from outboxkit.errors import ConfigurationError
from outboxkit.runtime.sources import Shards

SEEN_SECONDS = 2.0
"""A process says every so many seconds that it is there, and sees which others are."""
GONE = timedelta(seconds=10)
"""A process that has not been seen for so long counts as gone."""
LEAVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of the processes of a queue, as the database has it.

    Attributes:
        shards: the number of shards that get the queue's messages.
        members: the processes by their ids, in order, and the number of shards that each was started for.
        draining: the old queues that are not empty yet. Each has the keys of its last messages, or None until its
            marker has come.
        moved_from: the old number of shards, until the markers are sent.
        move: the number of the latest change.
    """

    shards: int
    members: tuple[tuple[str, int], ...]
    draining: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    moved_from: int | None = None
    move: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether no change of the number goes on."""
        return self.moved_from is None and not self.draining

    @property
    def is_open(self) -> bool:
        """Whether the shards may be consumed: it is known which keys still have messages in old queues."""
        return self.moved_from is None and None not in self.draining.values()

    def is_over(self, home: str, queue: str) -> bool:
        """Whether no change goes on for this queue of `home`: an old shard may be empty before the others are."""
        is_old = queue not in Shards(home, self.shards).consumed
        return self.is_settled or (is_old and self.moved_from is None and queue not in self.draining)

    def queues_of(self, member: str, queue: str) -> tuple[str, ...]:
        """The queues of this process now. Any process empties old ones if none of the new number is there."""
        sharing = [id_ for id_, count in self.members if count == self.shards]
        new = Shards(queue, self.shards).consumed if sharing and self.is_open else ()
        if not sharing and self.draining:
            sharing = [id_ for id_, _ in self.members]
        groups = tuple(self.draining), tuple(name for name in new if name not in self.draining)
        numbered = ((number, name) for group in groups for number, name in enumerate(group))
        return tuple(name for number, name in numbered if sharing[number % len(sharing)] == member)

    def held(self, queue: str) -> frozenset[str]:
        """The keys whose messages in this queue wait for earlier ones in old queues."""
        rest = () if queue in self.draining else self.draining.values()
        return frozenset(key for keys in rest for key in keys or ())

    def in_the_way_of(self, count: int) -> int:
        """The number of processes that work with the shards as they are, while one is started for so many."""
        return 0 if count == self.shards else sum(1 for _, other in self.members if other == self.shards)


async def enter(connection: AsyncConnection, queue: str, member: str, count: int) -> Agreement:
    """Say that this process is there, and see which others are. The queue's row is locked until the commit."""
    dialect, of = connection.dialect.name, {"queue": queue}
    await connection.execute(statements.shards.begin_sharding(dialect), of)
    row = (await connection.execute(statements.shards.lock_sharding(), of)).one()
    await connection.execute(statements.shards.register_member(dialect), of | {"member": member, "shards": count})
    await connection.execute(statements.shards.delete_gone(dialect), of | {"ago": -GONE})
    members = tuple((id_, shards) for id_, shards in await connection.execute(statements.shards.members(), of))
    return read_agreement(row, members)


def read_agreement(row: Row[Any], members: tuple[tuple[str, int], ...] = ()) -> Agreement:
    """The agreement in a row of the table, of these processes."""
    draining: dict[str, list[str] | None] = json.loads(row.draining or "{}")
    keys = {queue: None if left is None else tuple(left) for queue, left in draining.items()}
    return Agreement(row.shards, members, keys, row.moved_from, row.move)


async def write_agreement(connection: AsyncConnection, queue: str, agreement: Agreement) -> None:
    """Write an agreement that was changed."""
    draining = json.dumps(dict(agreement.draining)) if agreement.draining else None
    values = {"shards": agreement.shards, "moved_from": agreement.moved_from, "move": agreement.move}
    await connection.execute(statements.shards.change_shards(), {"of": queue, "draining": draining} | values)


async def quit_sharing(engine: AsyncEngine, queue: str, member: str) -> None:
    """Say that this process is gone, as far as that can be done soon."""
    with suppress(SQLAlchemyError, OSError, TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS), engine.begin() as connection:
            await connection.execute(statements.shards.delete_member(), {"queue": queue, "member": member})


@runtime_checkable
class ShardSource(Protocol):
    """The subscriber of one queue among the shards, or of a queue that may be split."""

    connects: int
    """The number of times that it has connected."""

    def keys_left(self, move: int) -> tuple[str, ...] | None:
        """The keys of unsettled messages from before this change. None: not known yet."""

    def follow(self, move: int, *, is_settled: bool) -> None:
        """Learn of all changes up to this one, and whether it has ended. Deliveries behind a later marker are held."""


class PlainMember:
    """The membership of a consumer of an ordered queue that is not split: a process with shards waits for its end.

    If others take it for gone and split the queue, its `source` keeps the marker behind its last message until it ends.
    """

    def __init__(self, engine: AsyncEngine, queue: str, source: ShardSource) -> None:
        self._engine, self._queue, self._source, self._id = engine, queue, source, ids.new()

    async def join(self) -> None:
        """Say that this process is there.

        Raises:
            ConfigurationError: the queue is split. Its messages would overtake one another.
        """
        async with self._engine.begin() as connection:
            agreement = await enter(connection, self._queue, self._id, 1)
        if agreement.shards > 1 or not agreement.is_settled:
            await self.leave()
            raise ConfigurationError(
                f"queue {self._queue!r} is split into shards: start with --shards {agreement.shards}, or with "
                "--shards 1 to move its messages back into one queue"
            )
        self._source.follow(agreement.move, is_settled=True)

    async def run(self, on_split: Callable[[], Awaitable[None]]) -> None:
        """Say again and again that this process is there, until cancelled. Outages are reported elsewhere.

        `on_split` is called if others have split the queue: they took this process for gone.
        """
        while True:
            await asyncio.sleep(SEEN_SECONDS)
            with suppress(SQLAlchemyError, OSError, TimeoutError):
                async with self._engine.begin() as connection:
                    agreement = await enter(connection, self._queue, self._id, 1)
                if agreement.shards > 1 or not agreement.is_settled:
                    await on_split()
                else:
                    self._source.follow(agreement.move, is_settled=True)

    async def leave(self) -> None:
        """Say that this process is gone."""
        await quit_sharing(self._engine, self._queue, self._id)
