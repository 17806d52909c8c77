"""Dead letters are found, replayed or discarded. Every row stays, and says by whom it was resolved.

One transaction resolves a page of them: it puts their messages back into the outbox, marks the dead letters and
releases their keys. So a replay may be killed at any time, and run again.

When a message becomes a dead letter is decided in `relay/decisions.py`, `inbox/failure.py` and, if no handler gets it,
`consumer/decisions.py`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import schema, statements
from outboxkit.errors.wording import COUNTED, Count
from outboxkit.operators.deadletters.refusal import Refusal, ReplayRules
from outboxkit.operators.deadletters.resolving import Resolved, resolve_page
from outboxkit.runtime import audit
from outboxkit.runtime.outage import Sleep, keep_to_rate
from outboxkit.schema import partitions
from outboxkit.statements.dead import Selection
from outboxkit.statements.resolve import Resolution

__all__ = ["DeadLetterPage", "DeadLetters", "Refusal", "ReplayRules", "Resolved", "Selection", "Survey"]

PAGE = 500
"""Dead letters that are resolved in one transaction."""
READ_AHEAD = 10_000
"""Numbers of dead letters that are read at once. Each time all remaining ones are sorted."""

Kind = tuple[str, str | None, str]
"""Side, type and reason."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """The newest dead letters of a selection, how many more there are, and the database's time."""

    rows: Sequence[Row[Any]]
    more: Count
    now: datetime


@dataclass(frozen=True, slots=True)
class Survey:
    """The counts of a selection, before anything is done with it.

    Attributes:
        kinds: the number of each side, type and reason, the largest first.
        count: all of them.
        refused: the number that a replay would refuse, by kind and reason, as far as can be told without trying.
        accepted: stale ones that a replay takes nevertheless, by its rules.
        upto: the highest number. Later dead letters are not part of the selection.
        keys: keys that these dead letters park.
        waiting: messages that wait behind these keys.
    """

    kinds: Sequence[tuple[Kind, int]]
    count: int
    refused: Counter[tuple[Kind, Refusal]]
    accepted: int
    upto: int
    keys: int
    waiting: int

    @property
    def replayable(self) -> int:
        """The number that can be replayed, unless their place in the outbox is taken."""
        return self.count - self.refused.total()

    @property
    def refusals(self) -> Counter[Refusal]:
        """The number of refused ones, by the reason."""
        counted = Counter[Refusal]()
        for (_, why), count in self.refused.items():
            counted[why] += count
        return counted

    def replayable_of(self, kind: Kind) -> int:
        """The number of one kind that can be replayed."""
        return dict(self.kinds).get(kind, 0) - sum(count for (of, _), count in self.refused.items() if of == kind)


def _quiet(_: Resolved) -> None:
    pass


class DeadLetters:
    """Reads and resolves dead letters.

    Args:
        engine: for its own connections.
        rules: for dead letters of the inbox.
        rate: dead letters a second that are resolved, at most; None for no limit.
        by: the operator's name, for the dead letters and the audit trail; None: the user of the system.
        monotonic, sleep: for tests.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        rules: ReplayRules | None = None,
        rate: float | None = None,
        by: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._rules = rules or ReplayRules()
        self._rate, self._by = rate, by
        self._page = PAGE if rate is None else max(int(min(PAGE, rate)), 1)
        self._monotonic = monotonic
        self._sleep = sleep

    async def now(self) -> datetime:
        """The time by the database's clock, which also gave the dead letters theirs.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            return await partitions.clock(connection)

    async def find(self, selection: Selection, *, limit: int) -> DeadLetterPage:
        """The newest dead letters of a selection, at most `limit`, without payloads and headers.

        Beyond them up to `COUNTED` more are counted.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            rows = (await connection.execute(statements.dead.newest(selection), {"limit": limit})).all()
            more = Count()
            if len(rows) == limit:
                most = {"limit": limit + COUNTED + 1}
                count = (await connection.execute(statements.dead.count_newest(selection), most)).scalar_one()
                more = Count(count - limit, at_least=count - limit > COUNTED)
            return DeadLetterPage(rows, more, await partitions.clock(connection))

    async def read(self, selection: Selection, *, limit: int) -> Sequence[Row[Any]]:
        """The first dead letters of a selection, at most `limit`, with all columns, the oldest first.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            rows: Sequence[Row[Any]] = (
                await connection.execute(statements.dead.whole(selection), {"limit": limit})
            ).all()
            return rows

    async def survey(self, selection: Selection) -> Survey:
        """Count the dead letters of a selection, and the messages that wait behind them.

        Raises:
            SchemaError: the tables are missing or old.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            kinds = (await connection.execute(statements.dead.count_by_kind(selection))).all()
            keys, waiting = (await connection.execute(statements.dead.count_released(selection))).one()
            refused, accepted = await self._judge(connection, selection)
        return Survey(
            kinds=sorted((((row[0], row[1], row[2]), row[3]) for row in kinds), key=lambda kind: -kind[1]),
            count=sum(row[3] for row in kinds),
            refused=refused,
            accepted=accepted,
            upto=max((row[4] for row in kinds), default=0),
            keys=keys,
            waiting=waiting,
        )

    async def replay(
        self, selection: Selection, stop: asyncio.Event, done: Resolved, progress: Callable[[Resolved], None] = _quiet
    ) -> None:
        """Put the selection's messages back into the outbox: same ids, no attempt counted.

        Those of the inbox come first, in the order in which they died, as new rows that are addressed to their queue.
        If one handler gave a message up, it is addressed to this handler alone. Those of the outbox go to their old
        places, in their order, due at once. Messages behind them stay behind, and are released once no dead letter
        before them parks their key. Those that the rules refuse are left as they are. `done` has the counts so far,
        however it ends, and `progress` is called with it after each page.

        Raises:
            SchemaError: the tables are missing or old.
        """
        await self._resolve("replayed", selection, stop, done, progress)

    async def discard(
        self, selection: Selection, stop: asyncio.Event, done: Resolved, progress: Callable[[Resolved], None] = _quiet
    ) -> None:
        """Mark the selection as discarded, of both sides. Messages behind them are released as by `replay`.

        Raises:
            SchemaError: the tables are missing or old.
        """
        await self._resolve("discarded", selection, stop, done, progress)

    async def who(self) -> str:
        """The name that is recorded: the user of the system, and the database's role if it has roles. Not a secret."""
        async with self._engine.connect() as connection:
            return await connection.run_sync(audit.who, self._by)

    async def _resolve(
        self,
        as_: Resolution,
        selection: Selection,
        stop: asyncio.Event,
        done: Resolved,
        progress: Callable[[Resolved], None],
    ) -> None:
        upto, filter_ = (await self.survey(selection)).upto, audit.filter_of(selection)
        action = "dead replay" if as_ == "replayed" else "dead discard"
        async with audit.recorded(self._engine, action, filter_, by=self._by) as running:
            await self._resolve_pages(as_, selection, upto, stop, done, progress, running)
            refused = f", {done.refused.total()} refused" if done.refused else ""
            running.result = (audit.DONE if done.complete else audit.STOPPED) + refused

    async def _resolve_pages(
        self,
        as_: Resolution,
        selection: Selection,
        upto: int,
        stop: asyncio.Event,
        done: Resolved,
        progress: Callable[[Resolved], None],
        running: audit.RunningAction,
    ) -> None:
        place, started = {"after_position": -2, "after_id": 0}, self._monotonic()
        by = await self.who()
        while not stop.is_set():
            async with self._engine.connect() as connection:
                bounds = {"upto": upto, "limit": READ_AHEAD} | place
                ahead = (await connection.execute(statements.dead.next_numbers(selection), bounds)).all()
            if not ahead:
                done.complete = True
                return
            for first in range(0, len(ahead), self._page):
                if stop.is_set():
                    return
                ids = [row.id for row in ahead[first : first + self._page]]
                async with self._engine.begin() as connection:
                    page = await resolve_page(connection, as_, ids, by, self._rules)
                    await running.count(connection, page.count)
                done.add(page)
                progress(done)
                await keep_to_rate(self._rate, done.count, self._monotonic() - started, stop, self._sleep)
            place = {"after_position": ahead[-1].place, "after_id": ahead[-1].id}

    async def _judge(
        self, connection: AsyncConnection, selection: Selection
    ) -> tuple[Counter[tuple[Kind, Refusal]], int]:
        """The number that the rules refuse, by kind and reason, and the number of stale ones that they accept."""
        refused, accepted = Counter[tuple[Kind, Refusal]](), 0
        now = await partitions.clock(connection)
        async for letter in await connection.stream(statements.dead.replay_candidates(selection)):
            why = self._rules.refusal(letter, now)
            if why is not None:
                refused[(letter.side, letter.type, letter.reason), why] += 1
            elif self._rules.is_stale(letter, now):
                accepted += 1
        return refused, accepted
