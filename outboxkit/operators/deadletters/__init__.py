"""Dead letters are found, replayed or discarded. Every row stays, and says by whom it was resolved.

One transaction resolves a page of them: it puts their messages back into the outbox, marks the dead letters and
releases their keys. So a replay may be killed at any time, and run again.

When a message becomes a dead letter is decided in `relay/decisions.py`, `consumer/decisions.py` and, if no handler gets
it, `consumer/routing.py`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outboxkit import schema, statements
from outboxkit.errors.figures import COUNTED, Count
from outboxkit.operators import audit
from outboxkit.operators.deadletters.refusal import Refusal, ReplayRules, rules_of
from outboxkit.operators.deadletters.resolving import Resolved, resolve_page
from outboxkit.operators.sql.resolve import Resolution
from outboxkit.runtime.outage import Sleep, keep_to_rate
from outboxkit.runtime.window import lowest_id
from outboxkit.runtime.workers import RELAY, is_session_of
from outboxkit.schema import partitions
from outboxkit.statements.dead import LetterPlace, Selection
from outboxkit.statements.dialects import is_server
from outboxkit.telemetry.catalogue import DEAD_REASONS

__all__ = [
    "REASONS",
    "SIDES",
    "WINDOW",
    "DeadLetterGroups",
    "DeadLetterPage",
    "DeadLetters",
    "Refusal",
    "ReplayRules",
    "Resolved",
    "Selection",
    "Survey",
    "rules_of",
]

PAGE = 500
"""Dead letters that are resolved in one transaction."""
READ_AHEAD = 10_000
"""Numbers of dead letters that are read at once. Each time all remaining ones are sorted."""

WINDOW = 20_000
"""Dead letters that are read for a page, at most."""

SIDES = tuple(DEAD_REASONS)
REASONS = tuple(dict.fromkeys(reason for reasons in DEAD_REASONS.values() for reason in reasons))

LetterKind = tuple[str, str | None, str]
"""Side, type and reason."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """The newest dead letters of a selection, how many more there are, and the database's time.

    Attributes:
        end: the place at which the reading ended, since a window was full: behind it more may match.
    """

    rows: Sequence[Row[Any]]
    more: Count
    now: datetime
    end: LetterPlace | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """The dead letters of a selection by the value of a column, the largest groups first; `end` as of a page.

    Each row has `value`, `rows`, the `first` and `last` moment, and the number of an `example`.
    """

    rows: Sequence[Row[Any]]
    end: LetterPlace | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The counts of a selection, before anything is done with it.

    Attributes:
        kinds: the number of each side, type and reason, and of those among them that a replay would take, as far as
            can be told without trying. The largest are first.
        refusals: the number that a replay would refuse, by the reason.
        accepted: stale ones that a replay takes nevertheless, by its rules.
        upto: the highest number. Later dead letters are not part of the selection.
        keys: keys that these dead letters park.
        waiting: messages that wait behind these keys.
        is_partial: whether some were not judged, of which a replay may refuse more.
        end: as of a page: behind it are more, or may be.
    """

    kinds: Sequence[tuple[LetterKind, int, int]]
    refusals: Counter[Refusal]
    accepted: int
    upto: int
    keys: int
    waiting: Count
    is_partial: bool = False
    end: LetterPlace | None = None

    @property
    def count(self) -> int:
        """All of them."""
        return sum(count for _, count, _ in self.kinds)

    @property
    def replayable(self) -> int:
        """The number that can be replayed, unless their place in the outbox is taken."""
        return self.count - self.refusals.total()


class DeadLetters:
    """Reads and resolves dead letters. To list or resolve them raises `SchemaError` if the tables are missing or old.

    Args:
        rate: dead letters a second that are resolved, at most; None for no limit.
        by: the operator's name, for the dead letters and the audit trail; None: the user of the system.
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
        """The time by the database's clock, which also gave the dead letters theirs."""
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            return await partitions.clock(connection)

    async def find(self, selection: Selection, *, limit: int, window: int | None = None) -> DeadLetterPage:
        """The newest dead letters of a selection, at most `limit`, without payloads and headers.

        Beyond them up to `COUNTED` more are counted. At most `window` dead letters are read; None: all.
        """
        async with self._engine.connect() as connection:
            selection = await self._bounded(connection, selection, window)
            rows = (await connection.execute(statements.dead.newest(selection), {"limit": limit})).all()
            more = Count()
            if len(rows) == limit:
                most = {"limit": limit + COUNTED + 1}
                count = (await connection.execute(statements.dead.count_newest(selection), most)).scalar_one()
                more = Count(count - limit, at_least=count - limit > COUNTED)
            return DeadLetterPage(rows, more, await partitions.clock(connection), selection.upto)

    async def _bounded(self, connection: AsyncConnection, selection: Selection, window: int | None) -> Selection:
        """Check the tables; returns the part of the selection that is read for at most `window` rows."""
        await connection.run_sync(schema.check)
        if window is None or selection.numbers or selection.message_ids:
            return selection
        if is_server(connection.dialect.name):
            await connection.execute(statements.status.forbid_sorting())
        end = await connection.execute(statements.dead.end_of_window(selection), {"window": window})
        place = end.one_or_none()
        return selection if place is None else replace(selection, upto=tuple(place))

    async def read(self, selection: Selection, *, limit: int) -> Sequence[Row[Any]]:
        """The first dead letters of a selection, at most `limit`, with all columns, the oldest first."""
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            rows: Sequence[Row[Any]] = (
                await connection.execute(statements.dead.whole(selection), {"limit": limit})
            ).all()
            return rows

    async def group(
        self, selection: Selection, column: str, *, limit: int, window: int | None = None
    ) -> DeadLetterGroups:
        """The dead letters of a selection by one of `statements.dead.GROUP_COLUMNS`; `window` as for `find`."""
        async with self._engine.connect() as connection:
            selection = await self._bounded(connection, selection, window)
            groups = await connection.execute(statements.dead.count_by(selection, column), {"limit": limit})
            return DeadLetterGroups(groups.all(), selection.upto)

    async def survey(self, selection: Selection, *, window: int | None = None, judged: int | None = None) -> Survey:
        """Count the dead letters of a selection, and up to `COUNTED` messages that wait behind them.

        `window` as for `find`. At most `judged` of those that the rules have doubts about are judged here, one by one;
        None: all. A discard needs none.
        """
        async with self._engine.connect() as connection:
            selection = await self._bounded(connection, selection, window)
            upto = (await connection.execute(statements.dead.highest())).scalar_one()
            released = statements.dead.count_released(selection)
            keys, waiting = (await connection.execute(released, {"limit": COUNTED + 1})).one()
            refused, refusals, accepted = Counter[LetterKind](), Counter[Refusal](), 0
            dialect, now = connection.dialect.name, await partitions.clock(connection)
            fresh_from = {"fresh_from": lowest_id(now - self._rules.retention + self._rules.skew)}
            kinds = (await connection.execute(statements.dead.count_by_kind(selection))).all()
            if kinds and judged != 0:
                candidates = statements.dead.replay_candidates(dialect, selection)
                async for letter in await connection.stream(candidates, fresh_from):
                    if (why := self._rules.refusal(letter, now)) is not None:
                        refused[letter.side, letter.type, letter.reason] += 1
                        refusals[why] += 1
                    else:
                        accepted += self._rules.is_stale(letter, now)
                    judged = None if judged is None else judged - 1
                    if judged == 0:
                        break
        counted = [((row.side, row.type, row.reason), row.rows) for row in kinds]
        return Survey(
            kinds=[(kind, count, count - refused[kind]) for kind, count in sorted(counted, key=lambda each: -each[1])],
            refusals=refusals,
            accepted=accepted,
            upto=upto,
            keys=keys,
            waiting=Count(waiting, at_least=waiting > COUNTED),
            is_partial=judged == 0,
            end=selection.upto,
        )

    async def count(self, selection: Selection, *, upto: int) -> int:
        """The number of dead letters of a selection up to this number. It reads all of them, which may take long."""
        async with self._engine.connect() as connection:
            left: int = (await connection.execute(statements.dead.count_left(selection), {"upto": upto})).scalar_one()
            return left

    async def resolve(
        self,
        as_: Resolution,
        selection: Selection,
        stop: asyncio.Event,
        done: Resolved,
        *,
        upto: int | None = None,
        running: audit.RunningAction | None = None,
    ) -> None:
        """Mark the selection as replayed or as discarded; what is replayed goes back into the outbox.

        A replayed message has its id, and no attempt counted. Those of the inbox come first, in the order in which they
        died, as new rows that are addressed to their queue. If one handler gave a message up, it is addressed to this
        handler alone. Those of the outbox go to their old places, in their order, due at once. Messages behind them
        stay behind, and are released once no dead letter before them parks their key. Those that the rules refuse are
        left as they are. `done` has the counts so far, however it ends. Dead letters up to the number `upto` are meant,
        by default those of now; `running` is the action, if its row is written already.
        """
        async with self._engine.connect() as connection:
            await connection.run_sync(schema.check)
            if upto is None:
                upto = (await connection.execute(statements.dead.highest())).scalar_one()
            done.by = await connection.run_sync(audit.who, self._by)
        action = "dead replay" if as_ == "replayed" else "dead discard"
        place, started = {"after_position": -2, "after_id": 0}, self._monotonic()
        recorded = audit.recorded(self._engine, action, audit.filter_of(selection), by=self._by)
        async with recorded if running is None else nullcontext(running) as audited:
            while not done.complete and not stop.is_set():
                async with self._engine.connect() as connection:
                    bounds = {"upto": upto, "limit": READ_AHEAD} | place
                    ahead = (await connection.execute(statements.dead.next_numbers(selection), bounds)).all()
                done.complete = not ahead
                for rows in (ahead[first : first + self._page] for first in range(0, len(ahead), self._page)):
                    if stop.is_set():
                        break
                    async with self._engine.begin() as connection:
                        page = await resolve_page(connection, as_, [row.id for row in rows], done.by, self._rules)
                        await audited.count(connection, page.count)
                    done.add(page)
                    await keep_to_rate(self._rate, done.count, self._monotonic() - started, stop, self._sleep)
                    place = {"after_position": rows[-1].place, "after_id": rows[-1].id}
            refused = f", {done.refused.total()} refused" if done.refused else ""
            audited.result = (audit.DONE if done.complete else audit.STOPPED) + refused

    async def without_relay(self, destinations: Iterable[str]) -> list[str]:
        """Those of these destinations that no relay is connected for; none if the database cannot tell."""
        if not is_server(self._engine.dialect.name):
            return []
        async with self._engine.connect() as connection:
            names = [row.name for row in await connection.execute(statements.activity.sessions())]
        return sorted(each for each in destinations if not any(is_session_of(name, RELAY, each) for name in names))
