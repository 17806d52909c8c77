"""Reading a database for the life of a message: what indexes lead to, a bounded search, and what each row waits for."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Connection, RowMapping

from outboxkit import schema
from outboxkit.database import session_names
from outboxkit.errors.wording import COUNTED
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.blockers import read_blockers
from outboxkit.operators.trace.clue import MOST, Clue, take_crashes, take_handled, take_letter, take_waiting
from outboxkit.operators.trace.entries import Archive, Lock, Neighbour, Registered, Surroundings, Waiting
from outboxkit.operators.trace.searching import search
from outboxkit.runtime.pauses import RELAY, read_pauses
from outboxkit.statements import activity, status
from outboxkit.statements import lives as statements
from outboxkit.statements.dialects import is_server

MOST_NAMES = 200
"""Handlers and queues whose rows are looked for."""
MOST_EXPLAINED = 50
"""Rows of the outbox of which it is found out what they wait for."""
_LIMIT = {"limit": MOST}


def find_messages(connection: Connection, clue: Clue, archive: Archive, *, patience: timedelta) -> None:
    """Find the messages of a clue, in the connection's transaction; the clue learns their ids.

    Raises:
        SchemaError: the tables are missing or old.
    """
    schema.check(connection)
    dialect = connection.dialect.name
    if is_server(dialect):
        connection.execute(status.forbid_sorting())
    if clue.key is not None:
        of_key = _LIMIT | {"key": clue.key}
        for statement in (statements.ready_of_key(), statements.held_of_key()):
            for row in connection.execute(statement, of_key).mappings():
                take_waiting(archive, clue, row)
        for row in connection.execute(statements.parked_of_key(), of_key).mappings():
            take_letter(archive, clue, row)
    else:
        by_ids = _LIMIT | {"ids": sorted(clue.ids)}
        for statement in (statements.delayed(dialect), statements.deduplicated(dialect)):
            for row in connection.execute(statement, by_ids).mappings():
                take_waiting(archive, clue, row)
        for row in connection.execute(statements.dead(dialect), by_ids).mappings():
            take_letter(archive, clue, row)
    archive.oldest_kept = connection.execute(status.oldest_published()).scalar_one()
    search(connection, clue, archive, patience=patience)


def find_outcomes(connection: Connection, clue: Clue, archive: Archive) -> None:
    """Find what became of the messages that the clue has led to, and what those in the outbox wait for."""
    dialect = connection.dialect.name
    if is_server(dialect):
        connection.execute(status.forbid_sorting())
    most = {"most": MOST_NAMES + 1}
    handlers = connection.execute(status.handlers(), most).scalars().all()
    queues = connection.execute(status.queues_with_crashes(), most).scalars().all()
    if len(handlers) > MOST_NAMES:
        archive.cut["inbox"] = f"the inbox's rows of handlers behind {handlers[MOST_NAMES - 1]}"
    by_ids = {"limit": 10 * MOST, "ids": sorted(clue.ids)}
    for row in connection.execute(statements.handled(dialect), by_ids | {"handlers": list(handlers)}).mappings():
        take_handled(archive, row)
    for row in connection.execute(statements.crashes(dialect), by_ids | {"queues": list(queues)}).mappings():
        take_crashes(archive, row)
    for row in connection.execute(statements.dead(dialect), by_ids).mappings():
        take_letter(archive, clue, row)
    archive.handlers = registered_handlers(connection)
    _count_payloads(connection, archive)
    if is_server(dialect):
        archive.blockers = read_blockers(connection, archive.now)
    _explain(connection, clue, archive)


def _count_payloads(connection: Connection, archive: Archive) -> None:
    """Count the payloads of each id that several messages have."""
    dialect = connection.dialect.name
    times = Counter(row.message.message_id for row in archive.waiting.values())
    times.update(row.message.message_id for row in archive.kept.values())
    rows = {place: row.message.message_id for place, row in archive.waiting.items()}
    again = {place: id_ for place, id_ in rows.items() if times[id_] > 1}
    payloads = defaultdict[str | None, set[object]](set)
    if again:
        for position, digest in connection.execute(statements.digests_waiting(dialect), {"positions": [*again]}):
            payloads[again[position]].add(digest)
    published = {place: row.message.message_id for place, row in archive.kept.items()}
    if places := {place: id_ for place, id_ in published.items() if times[id_] > 1}:
        ats, positions = zip(*places, strict=True)
        parameters = {"positions": [*positions], "ats": [*ats]}
        for at, position, digest in connection.execute(statements.digests_kept(dialect), parameters):
            payloads[places[at, position]].add(digest)
    archive.payloads = {id_: len(several) for id_, several in payloads.items() if id_ is not None}


def _explain(connection: Connection, clue: Clue, archive: Archive) -> None:
    """Find what rows of the outbox wait for, that of the given message first."""
    rows = sorted(archive.waiting.values(), key=lambda row: (row.message.message_id != clue.message_id, row.position))
    locks, relays = dict[int, Lock](), None
    if is_server(connection.dialect.name) and rows:
        positions = {"positions": [row.position for row in rows[:MOST_EXPLAINED]]}
        for lock in connection.execute(statements.row_locks(), positions).mappings():
            locks[lock["position"]] = Lock(lock["pid"], lock["name"], lock["since"])
        names = [session["name"] for session in connection.execute(activity.sessions()).mappings()]
        relays = sum(name.startswith(session_names.RELAY) for name in names)
    pauses = {pause.name: pause for pause in read_pauses(connection) if pause.process == RELAY} if rows else {}
    for row in rows[:MOST_EXPLAINED]:
        pause = pauses.get(row.message.destination or DEFAULT_DESTINATION)
        around = replace(_around(connection, row), lock=locks.get(row.position), relays=relays, pause=pause)
        archive.waiting[row.position] = replace(row, around=around)


def _around(connection: Connection, row: Waiting) -> Surroundings:
    place = {"destination": row.message.destination, "position": row.position}
    ahead = connection.execute(statements.count_ahead(), place | {"limit": COUNTED + 1}).scalar_one()
    if row.message.key is None:
        return Surroundings(ahead=ahead)
    parameters = place | {"key": row.message.key}
    ready = connection.execute(statements.first_ready_before(), parameters).mappings().one_or_none()
    held = connection.execute(statements.first_held_before(), parameters).mappings().one_or_none()
    letter = connection.execute(statements.parking(), parameters).mappings().one_or_none()
    parking = None
    if letter is not None:
        parking = Neighbour(letter["message_id"], error=letter["error"], number=letter["id"], reason=letter["reason"])
    return Surroundings(ready=_neighbour(ready), held=_neighbour(held), parking=parking, ahead=ahead)


def _neighbour(row: RowMapping | None) -> Neighbour | None:
    if row is None:
        return None
    return Neighbour(row["message_id"], row["position"], row["due_at"], row["attempts"], row["last_error"])


def registered_handlers(connection: Connection) -> tuple[Registered, ...]:
    """The handlers that consumers have registered."""
    rows = connection.execute(statements.registered(), {"limit": 10 * MOST_NAMES}).mappings()
    return tuple(
        Registered(
            row["handler"],
            row["queue"],
            _types(row["types"]),
            row["last_seen"],
            row["first_seen"],
            timedelta(seconds=row["retention"]) if row["retention"] is not None else None,
        )
        for row in rows
    )


def _types(text: str | None) -> tuple[str, ...] | None:
    """The types in a row of `outboxkit_handler`; None if they are not known."""
    try:
        types = json.loads(text or "null")
    except ValueError:
        return None
    return tuple(each for each in types if isinstance(each, str)) if isinstance(types, list) else None
