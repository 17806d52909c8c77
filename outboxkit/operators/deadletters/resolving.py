"""One page of dead letters, resolved in one transaction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import statements
from outboxkit.operators import sql
from outboxkit.operators.deadletters import refusal
from outboxkit.operators.deadletters.refusal import Refusal, ReplayRules
from outboxkit.operators.sql.resolve import Resolution
from outboxkit.runtime import window
from outboxkit.schema import partitions
from outboxkit.statements.dialects import is_server


@dataclass(slots=True)
class Resolved:
    """The counts of a replay or a discard so far.

    Attributes:
        by: the name that is recorded.
        released: messages that waited behind them, and are due now.
        destinations: where those that were replayed go.
        refused: the number that was left as it is, by the reason.
    """

    count: int = 0
    released: int = 0
    destinations: set[str] = field(default_factory=set)
    refused: Counter[Refusal] = field(default_factory=Counter)
    complete: bool = False
    by: str = ""

    def add(self, page: "Resolved") -> None:
        """Count a page that is committed."""
        self.count, self.released = self.count + page.count, self.released + page.released
        self.refused += page.refused
        self.destinations |= page.destinations


async def resolve_page(
    connection: AsyncConnection, as_: Resolution, ids: Sequence[int], by: str, rules: ReplayRules
) -> Resolved:
    """Resolve those of these dead letters that are still open, in the connection's transaction."""
    dialect, page, requested = connection.dialect.name, Resolved(), set(ids)
    if is_server(dialect):
        await connection.execute(sql.resolve.forbid_seqscan())
    family = (await connection.execute(sql.resolve.with_siblings(dialect), {"ids": ids})).scalars().all()
    locked = (await connection.execute(sql.resolve.lock(dialect), {"ids": family})).all()
    rows = [row for row in locked if row.id in requested]
    if not rows:
        return page
    now = await partitions.clock(connection)
    if as_ == "replayed":
        done = await _send_back(connection, [row.id for row in rows if row.side != "outbox"], now, rules, page)
        done |= await _put_back(connection, [row for row in rows if row.side == "outbox"], now, rules, page)
        rows = [row for row in rows if row.id in done]
        page.destinations = {row.destination for row in rows}
    else:
        await _record(connection, [row.id for row in rows])
    if rows:
        marked = {"ids": [row.id for row in rows], "as_": as_, "by": by, "now": now}
        await connection.execute(sql.resolve.resolve(dialect), marked)
    page.count, page.released = len(rows), await _release(connection, rows, now)
    return page


async def _send_back(
    connection: AsyncConnection, ids: Sequence[int], now: datetime, rules: ReplayRules, page: Resolved
) -> set[int]:
    """Insert the messages of these dead letters of the inbox, addressed to their queue. Returns the ids it sent."""
    if not ids:
        return set()
    letters = (await connection.execute(sql.resolve.envelopes(connection.dialect.name), {"ids": ids})).all()
    sent: list[dict[str, Any]] = []
    for letter in letters:
        why = rules.refusal(letter, now)
        accepted_at = now if rules.is_stale(letter, now) else None
        try:
            written = refusal.of_replay(letter, accepted_at=accepted_at) if why is None else b""
        except ValueError:
            why = Refusal.MALFORMED
        if why is None:
            sent.append({"id": letter.id, "headers": written, "stand_in": f"dead-letter-{letter.id}"})
        else:
            page.refused[why] += 1
    if sent:
        await connection.execute(sql.resolve.send_back(), sent)
    return {row["id"] for row in sent}


async def _record(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Write inbox rows for discarded dead letters, so that no replay and no redelivery runs their handlers again.

    A dead letter without a handler leaves no row: its handlers are not known.
    """
    dialect = connection.dialect.name
    letters = (await connection.execute(sql.resolve.envelopes(dialect), {"ids": ids})).all()
    rows = [
        (
            letter.handler,
            letter.message_id,
            letter.type or "",
            letter.attempts,
            None,
            window.message_time(letter.message_id, letter.created_at),
        )
        for letter in letters
        if letter.side == "inbox" and letter.handler and letter.message_id
    ]
    if rows:
        rows.sort(key=itemgetter(0, 1))  # as every consumer does, so that nobody waits in a circle
        names = ("handlers", "message_ids", "types", "attempts", "payload_crcs", "mades")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        await connection.execute(statements.inbox.record_all(dialect), columns)


async def _put_back(
    connection: AsyncConnection, rows: Sequence[Row[Any]], now: datetime, rules: ReplayRules, page: Resolved
) -> set[int]:
    """Put these dead letters of the outbox back to their old places. Returns the ids for which that was possible."""
    if not rows:
        return set()
    by_place = {row.position: row.id for row in reversed(rows) if row.position is not None}
    places = set[int]()
    for ids, headers in await _with_headers(connection, list(by_place.values()), now, rules):
        statement = sql.resolve.put_back(connection.dialect.name)
        places |= {*(await connection.execute(statement, {"ids": ids, "now": now, "headers": headers})).scalars()}
    back = {by_place[place] for place in places}
    placeless = sum(row.position is None for row in rows)
    page.refused += Counter({Refusal.NO_PLACE: placeless, Refusal.TAKEN: len(rows) - placeless - len(back)})
    return back


async def _with_headers(
    connection: AsyncConnection, ids: Sequence[int], now: datetime, rules: ReplayRules
) -> list[tuple[list[int], bytes | None]]:
    """These dead letters of the outbox by the headers that they get: those that are accepted as stale get others."""
    if not rules.accept_stale:
        return [([*ids], None)]
    letters = (await connection.execute(sql.resolve.envelopes(connection.dialect.name), {"ids": ids})).all()
    stale = {each.id: refusal.accepted(each, now) for each in letters if rules.is_stale(each, now)}
    return [([each for each in ids if each not in stale], None), *(([each], stale[each]) for each in stale)]


async def _release(connection: AsyncConnection, resolved: Iterable[Row[Any]], now: datetime) -> int:
    """Make the messages behind these due now, unless another dead letter is before them. Returns their number."""
    parked = sorted({(row.destination, row.key) for row in resolved if row.parked and row.key is not None})
    statement, released = sql.resolve.release_parked(connection.dialect.name), 0
    for destination, keys in groupby(parked, key=itemgetter(0)):
        parameters = {"at_destination": destination, "keys": [key for _, key in keys], "now": now}
        released += (await connection.execute(statement, parameters)).rowcount
    return released
