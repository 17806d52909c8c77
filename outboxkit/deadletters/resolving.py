"""One page of dead letters: in one transaction all of it is resolved, or nothing."""

import getpass
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit import partitions, statements, window
from outboxkit.deadletters import refusal
from outboxkit.deadletters.refusal import Refusal, Rules
from outboxkit.message import NAME_LIMIT, storable
from outboxkit.statements.resolve import Resolution

NAMED = 10
"""Refused dead letters that are named, for each reason."""


@dataclass(slots=True)
class Resolved:
    """How far a replay or a discard is.

    Attributes:
        count: dead letters that were resolved.
        released: messages that waited behind them, and are due now.
        refused: how many were left as they are, by the reason.
        named: the numbers of the first of them.
        complete: whether that is all of the selection.
    """

    count: int = 0
    released: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)
    named: dict[Refusal, list[int]] = field(default_factory=dict)
    complete: bool = False

    def refuse(self, why: Refusal, numbers: Sequence[int]) -> None:
        """Count these as refused."""
        if numbers:
            self.refused[why] += len(numbers)
            self.named[why] = [*self.named.get(why, []), *numbers][:NAMED]

    def add(self, page: "Resolved") -> None:
        """Count a page that is committed."""
        self.count, self.released = self.count + page.count, self.released + page.released
        self.refused.update(page.refused)
        for why, numbers in page.named.items():
            self.named[why] = [*self.named.get(why, []), *numbers][:NAMED]


async def resolve_page(
    connection: AsyncConnection, as_: Resolution, ids: Sequence[int], by: str, rules: Rules
) -> Resolved:
    """Resolve these dead letters, those of them that are still open, in the connection's transaction."""
    dialect, page, wanted = connection.dialect.name, Resolved(), set(ids)
    if dialect == "postgresql":
        await connection.execute(statements.resolve.by_key())
    family = (await connection.execute(statements.resolve.with_siblings(dialect), {"ids": ids})).scalars().all()
    locked = (await connection.execute(statements.resolve.lock(dialect), {"ids": family})).all()
    chosen = [row for row in locked if row.id in wanted]
    if not chosen:
        return page
    now = await partitions.clock(connection)
    if as_ == "replayed":
        done = await _send_back(connection, [row.id for row in chosen if row.side != "outbox"], now, rules, page)
        done |= await _put_back(connection, [row for row in chosen if row.side == "outbox"], now, page)
        chosen = [row for row in chosen if row.id in done]
    else:
        await _record(connection, [row.id for row in chosen])
    if chosen:
        marked = {"ids": [row.id for row in chosen], "as_": as_, "by": by, "now": now}
        await connection.execute(statements.resolve.resolve(dialect), marked)
    page.count, page.released = len(chosen), await _release(connection, chosen, now)
    return page


async def who(connection: AsyncConnection) -> str:
    """The user of the system, and the database's role where it has roles."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        user = f"user {os.getuid()}"
    if connection.dialect.name == "sqlite":
        return storable(user)[:NAME_LIMIT]
    role = (await connection.execute(statements.resolve.role())).scalar_one()
    return storable(f"{user} (database role {role})")[:NAME_LIMIT]


async def _send_back(
    connection: AsyncConnection, ids: Sequence[int], now: datetime, rules: Rules, page: Resolved
) -> set[int]:
    """Insert the messages of these dead letters of the inbox, addressed to their queue; returns those that could be."""
    if not ids:
        return set()
    found = (await connection.execute(statements.resolve.envelopes(connection.dialect.name), {"ids": ids})).all()
    sent: list[dict[str, Any]] = []
    for letter in found:
        why = rules.refusal(letter, now)
        accepted_at = now if rules.is_stale(letter, now) else None
        try:
            written = refusal.of_replay(letter, accepted_at=accepted_at) if why is None else b""
        except ValueError:
            why = Refusal.MALFORMED
        if why is None:
            sent.append({"id": letter.id, "headers": written})
        else:
            page.refuse(why, [letter.id])
    if sent:
        await connection.execute(statements.resolve.send_back(), sent)
    return {row["id"] for row in sent}


async def _record(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Have the inbox remember what its handlers are not to do any more: no replay and no redelivery runs them for it.

    A dead letter without a handler leaves nothing: nobody knows which handlers it was for.
    """
    dialect = connection.dialect.name
    found = (await connection.execute(statements.resolve.envelopes(dialect), {"ids": ids})).all()
    rows = [
        (
            letter.handler,
            letter.message_id,
            letter.type or "",
            letter.attempts,
            window.message_time(letter.message_id, letter.created_at),
        )
        for letter in found
        if letter.side == "inbox" and letter.handler and letter.message_id
    ]
    if rows:
        rows.sort(key=itemgetter(0, 1))  # as every consumer does, so that nobody waits in a circle
        names = ("handlers", "message_ids", "types", "attempts", "mades")
        given = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        await connection.execute(statements.inbox.record_all(dialect), given)


async def _put_back(connection: AsyncConnection, rows: Sequence[Row[Any]], now: datetime, page: Resolved) -> set[int]:
    """Put these dead letters of the outbox to the places that they had there; returns those that could be."""
    if not rows:
        return set()
    by_place = {row.position: row.id for row in reversed(rows) if row.position is not None}
    statement = statements.resolve.put_back(connection.dialect.name)
    placed = (await connection.execute(statement, {"ids": list(by_place.values()), "now": now})).scalars()
    back = {by_place[place] for place in placed}
    page.refuse(Refusal.NO_PLACE, [row.id for row in rows if row.position is None])
    page.refuse(Refusal.TAKEN, [row.id for row in rows if row.position is not None and row.id not in back])
    return back


async def _release(connection: AsyncConnection, resolved: Iterable[Row[Any]], now: datetime) -> int:
    """Have what waited behind these due now, unless another dead letter stands before it; returns how many."""
    parked = sorted({(row.destination, row.key) for row in resolved if row.parked and row.key is not None})
    statement, released = statements.resolve.release(connection.dialect.name), 0
    for destination, found in groupby(parked, key=itemgetter(0)):
        given = {"at_destination": destination, "keys": [key for _, key in found], "now": now}
        released += (await connection.execute(statement, given)).rowcount
    return released
