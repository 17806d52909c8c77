"""Messages that wait: without a relay, behind failures, behind dead letters; and calls with an unknown result."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from outboxkit.errors.failures import printable
from outboxkit.errors.wording import COUNTED, Count, many, number, printable_name, shell_word, span
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis, Severity
from outboxkit.runtime.pauses import RELAY as PAUSED_RELAY
from outboxkit.runtime.pauses import read_pauses
from outboxkit.runtime.pauses.holding import Holding, read_holding, relay_name
from outboxkit.schema import partitions
from outboxkit.statements import activity, doctor, lives, status

LIMIT = {"limit": COUNTED + 1}
MOST_DESTINATIONS = 100
RELAY = "outboxkit relay"
NO_RELAY = note(
    "relay-none",
    "No relay is connected to this database; no message waits for one.",
    cure="It is needed as soon as a message is added:",
    commands=(RELAY,),
)
_TOP, _MOST_TYPES = 3, 5
_LAST = 2**63 - 1
_AGE = attrgetter("oldest")
_LONGEST_ERROR = 200
_MOST_ALONE = 10
_IF_ONE_RUNS = (
    "If one runs, read its log: it may have an old password. Or it is connected to another database, "
    "or a pooler hides its name:"
)
_UNPUBLISHED = "What the application has committed reaches nobody else. Nothing is lost: a relay publishes it later."


@dataclass(frozen=True)
class Backlog:
    """The messages of a destination that could go now: how many, and since when the oldest waits, in seconds."""

    destination: str
    ready: Count
    oldest: float


async def check_relays(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Whether each destination whose messages wait has a relay, and whether that gets on."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        backlogs = [each async for each in _backlogs(connection, now)]
        paused = {pause.name for pause in await connection.run_sync(read_pauses) if pause.process == PAUSED_RELAY}
        names: list[str] | None = None
        if installation.has_server:
            sessions = (await connection.execute(activity.sessions())).all()
            names = [row.name for row in sessions if row.name.startswith(RELAY)]
    patience = installation.thresholds.waiting.total_seconds()
    late = [each for each in backlogs if each.oldest >= patience and each.destination not in paused]
    alone = [each for each in late if each.destination != DEFAULT_DESTINATION and not _relays(each, names)]
    for backlog in late:
        if backlog not in alone:
            yield _of_late(backlog, names)
    if alone:
        yield _of_alone(alone, names)
    if names == [] and not late:
        fresh = [each for each in backlogs if each.destination not in paused]
        yield replace(_of_late(max(fresh, key=_AGE), names), severity=Severity.WARNING) if fresh else NO_RELAY


async def check_pauses(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Relays and queues that operators hold."""
    async with installation.database() as connection:
        pauses = await connection.run_sync(read_pauses)
        holding = await connection.run_sync(read_holding, pauses)
    for each in holding:
        if each.others:
            yield _of_ignored(each)
    for pause in pauses:
        is_relay = pause.process == PAUSED_RELAY
        option = f" --destination {shell_word(pause.name)}" if is_relay and pause.name != DEFAULT_DESTINATION else ""
        yield warning(
            "paused",
            f"{pause}.",
            why="Its messages wait until the pause ends. Nothing is lost.",
            cure="If its reason is over, resume it:",
            commands=(f"outboxkit resume {f'relay{option}' if is_relay else shell_word(pause.name)}",),
        )


def _of_ignored(holding: Holding) -> Diagnosis:
    """The finding about processes that have not acknowledged their pause."""
    return problem(
        "pause-not-held",
        f"Of {holding.process} {printable_name(holding.name)}, which is paused, {holding}.",
        why="Messages may leave or be handled although an operator has forbidden it.",
        cure="A busy process acknowledges once it has nothing in flight. If it does not, it hangs, may not read "
        "outboxkit_pause, or is of a release without pauses. End it: its supervisor starts it again, paused.",
        commands=("outboxkit status",),
    )


async def _backlogs(connection: AsyncConnection, now: datetime) -> AsyncGenerator[Backlog]:
    parameters = LIMIT | {"most": MOST_DESTINATIONS}
    for name in (await connection.execute(status.destinations(), parameters)).scalars().all():
        rows, oldest = (await connection.execute(status.ready(), LIMIT | {"destination": name})).one()
        if rows:
            age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
            yield Backlog(name, Count(rows, at_least=rows > COUNTED), age)


def _relays(backlog: Backlog, names: Sequence[str] | None) -> list[str]:
    """The sessions of its relays; none if there are no sessions to look at, on SQLite."""
    return [each for each in names or () if serves(each, backlog.destination)]


def _waits(backlog: Backlog) -> str:
    to = "" if backlog.destination == DEFAULT_DESTINATION else f" to {printable_name(backlog.destination)}"
    return f"{many(backlog.ready, 'message')}{to} could go now, and the oldest waits for {span(backlog.oldest)}"


def _command(destination: str) -> str:
    ours = destination == DEFAULT_DESTINATION
    return RELAY if ours else f"{RELAY} --destination {shell_word(destination)}"


def _nobody(names: Sequence[str] | None, relay: str) -> str:
    """That no relay is there; without sessions to look at nobody knows."""
    return f"and no session of {relay} is connected" if names is not None else "and a file tells of no relay"


def _of_late(backlog: Backlog, names: Sequence[str] | None) -> Diagnosis:
    """The finding about one destination, which has a relay or is the broker."""
    command = _command(backlog.destination)
    if relays := _relays(backlog, names):
        return problem(
            "relay-stuck",
            f"{_waits(backlog)}, though {many(len(relays), 'session')} of a relay for it "
            f"{'is' if len(relays) == 1 else 'are'} connected.",
            why=_UNPUBLISHED,
            cure="Read the relay's log: it says which server is away, or what it refuses. The broker's findings of "
            "doctor may name the cause. If the log stands still, end the relay's process: its supervisor starts it "
            "again, and nothing is lost. Meanwhile a relay beside it moves what waits and is not locked:",
            commands=(f"{command} --drain",),
        )
    return problem(
        "relay-missing",
        f"{_waits(backlog)}, {_nobody(names, 'a relay for it')}.",
        why=_UNPUBLISHED,
        cure=f"Start a relay, and let a supervisor keep it running. {_IF_ONE_RUNS}",
        commands=(command,),
    )


def _of_alone(backlogs: Sequence[Backlog], names: Sequence[str] | None) -> Diagnosis:
    """The finding about all destinations without a relay, those first whose messages wait for longest."""
    ordered = sorted(backlogs, key=_AGE, reverse=True)
    shown, more = ordered[:_MOST_ALONE], len(ordered) - _MOST_ALONE
    waits = "; ".join(_waits(each) for each in shown) + (f"; and {many(more, 'other destination')}" if more > 0 else "")
    relay = "a relay for it" if len(ordered) == 1 else "a relay for them"
    return problem(
        "destination-without-relay",
        f"{waits}, {_nobody(names, relay)}.",
        why=_UNPUBLISHED,
        cure="Start a relay for each, and let a supervisor keep it running. Nobody publishes to a misspelt "
        f"destination. {_IF_ONE_RUNS}",
        commands=tuple(_command(each.destination) for each in shown),
    )


def serves(session: str, destination: str) -> bool:
    """Whether a relay's session, by its name, is the one of this destination's relay."""
    return session == relay_name(destination)


async def check_failing(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Types whose messages wait for a retry, because publishing them failed."""
    async with installation.database() as connection:
        names = (await connection.execute(status.destinations(), LIMIT | {"most": MOST_DESTINATIONS})).scalars().all()
        failing = {
            name: (await connection.execute(status.failing(), LIMIT | {"destination": name})).all() for name in names
        }
    rows = [(name, row) for name, rows in failing.items() for row in rows]
    for name, row in sorted(rows, key=lambda pair: -pair[1].rows)[:_MOST_TYPES]:
        kind, to = printable_name(row.type), printable_name(name)
        messages = many(Count(row.rows, at_least=row.rows > COUNTED), "message")
        what = f"{messages} of type {kind} to {to} cannot be published"
        error = printable(row.last_error or "-", _LONGEST_ERROR)
        yield _of_failing(what, error, row.attempts)


def _of_failing(what: str, error: str, attempts: int) -> Diagnosis:
    """The finding about one type; without attempts its messages were only put off."""
    if not attempts:
        return warning(
            "type-failing",
            f"{what} for now: {error}",
            why="No attempt is counted for that, and nothing is lost. Later messages of their keys wait behind them.",
            cure="If a queue is full, start its consumer, or more of them. If a destination asks to wait, its own log "
            "says why. They go by themselves.",
            commands=("outboxkit status",),
        )
    return warning(
        "type-failing",
        f"{what}, after up to {many(attempts, 'attempt')}: {error}",
        why="After OUTBOXKIT_MAX_ATTEMPTS each becomes a dead letter. Later messages of its key wait meanwhile, and "
        "behind the dead letter too, unless it was unroutable.",
        cure="Mend what the error names. If no queue wants the type, start its consumer once: that binds the queue. "
        "They go at their next attempt by themselves.",
        commands=("outboxkit status",),
    )


async def check_dead_letters(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Parked keys, and dead letters that nobody has decided on."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        open_ = (await connection.execute(status.dead_open(), LIMIT)).all()
        oldest = (await connection.execute(doctor.oldest_dead())).one_or_none()
        parked = [row async for row in _parked(connection)]
    for finding in (*_of_parked(parked), *_of_open(open_, oldest, now, installation)):
        yield finding


@dataclass(frozen=True)
class ParkedBehind:
    """A parked key, the numbers of its waiting messages and dead letters, and the oldest of these."""

    destination: str
    key: str
    waiting: int
    dead: int
    keys: int
    letter: Row[Any]


async def _parked(connection: AsyncConnection) -> AsyncGenerator[ParkedBehind]:
    """Of each destination the keys with the most waiting messages."""
    names = (await connection.execute(status.destinations(), LIMIT | {"most": MOST_DESTINATIONS})).scalars().all()
    for name in names:
        top = (await connection.execute(status.parked_keys(), LIMIT | {"top": _TOP, "destination": name})).all()
        for key, waiting, dead, keys, _ in top:
            of_key = {"key": key, "destination": name, "position": _LAST}
            letter = (await connection.execute(lives.parking(), of_key)).one_or_none()
            if letter is not None:
                yield ParkedBehind(name, key, waiting, dead, keys, letter)


def _of_parked(parked: Sequence[ParkedBehind]) -> Iterator[Diagnosis]:
    for each in parked:
        key, letter = printable_name(each.key), each.letter
        to = "" if each.destination == DEFAULT_DESTINATION else f" to {printable_name(each.destination)}"
        others = f" {many(each.keys, 'key')}{to} are parked in all." if each.keys > _TOP else ""
        yield problem(
            "key-parked",
            f"The key {key}{to} is parked: {many(each.waiting, 'message')} {'waits' if each.waiting == 1 else 'wait'} "
            f"behind {many(each.dead, 'dead letter')}. The first is message {printable_name(letter.message_id)} "
            f"({letter.reason}): {printable(letter.error or '-', _LONGEST_ERROR)}.{others}",
            why="Messages of a key stay in order, so that the later ones wait until somebody decides on the dead one.",
            cure="Look at the reason, and mend it. Then replay the dead letter, or discard it; the others follow:",
            commands=(
                f"outboxkit dead show {letter.id}",
                f"outboxkit dead replay --key {shell_word(each.key)}",
                f"outboxkit dead discard --key {shell_word(each.key)}",
            ),
        )


def _of_open(
    rows: Sequence[Row[Any]],
    oldest: Row[Any] | None,
    now: datetime,
    installation: Installation,
) -> Iterator[Diagnosis]:
    if not rows or oldest is None:
        return
    age = now - oldest.dead_at
    total = sum(row.rows for row in rows)
    parts = [(Count(row.rows, at_least=total > COUNTED), f"{row.side} {printable_name(row.reason)}") for row in rows]
    reasons = ", ".join(f"{number(count)} {name}" for count, name in parts)
    error = printable(oldest.error or "-", _LONGEST_ERROR)
    is_old = age >= installation.thresholds.dead_letter
    yield warning(
        "dead-letters-old" if is_old else "dead-letters-open",
        f"{many(Count(total, at_least=total > COUNTED), 'dead letter')} {'is' if total == 1 else 'are'} open "
        f"({reasons}), the oldest for {span(max(0.0, age.total_seconds()))}: {printable_name(oldest.type)}, {error}",
        why="Each is an effect that did not happen. The longer it waits, the harder it is to make up for.",
        cure="Look at the reasons, mend the cause, then replay or discard them:",
        commands=("outboxkit dead list", f"outboxkit dead show {oldest.id}"),
    )


async def check_effects(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Calls of which nobody knows whether they happened."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        rows = (await connection.execute(status.unknown_effects(), LIMIT | {"now": now})).scalar_one()
    if rows:
        yield warning(
            "effect-unknown",
            f"{many(Count(rows, at_least=rows > COUNTED), 'call')} to other systems may have happened or not.",
            why="The process ended between the call and its record. Nobody but the other system knows.",
            cure="The next run decides as its on_unknown says. If none comes, ask the other system about these keys:",
            commands=(
                "SELECT key, started_at FROM outboxkit_effect WHERE state = 'started' AND locked_until < now();",
            ),
        )
