"""Messages that wait: for a paused or missing relay, for a retry, behind dead letters; and calls of unknown result."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

from outboxkit.database.session_names import RELAY_SESSION, relay_name
from outboxkit.errors.failures import printable
from outboxkit.errors.figures import COUNTED, Count, counted, in_utc, many, number, printable_name, shell_word, span
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.doctor.installation import Database
from outboxkit.operators.findings import Diagnosis, finding
from outboxkit.operators.holding import read_holding
from outboxkit.operators.retries import read_retried
from outboxkit.operators.sql import doctor, trace
from outboxkit.runtime import window
from outboxkit.runtime.pauses import read_pauses
from outboxkit.runtime.workers import RELAY, read_workers, relay_command
from outboxkit.statements import activity, status

LIMIT = COUNTED + 1
MOST_DESTINATIONS = 100
_LAST = 2**63 - 1
_TOP, _MOST_TYPES, _MOST_ALONE = 3, 5, 10
_LONGEST_ERROR = 200


def check_pauses(database: Database) -> Iterator[Diagnosis]:
    """Relays and queues that operators hold, and processes that do not keep to it."""
    pauses = read_pauses(database.connection)
    for each in read_holding(database.connection, pauses):
        if each.others:
            yield finding("pause-ignored", process=f"{each.process} {printable_name(each.name)}", holding=each)
    for pause in pauses:
        process = shell_word(f"queue:{pause.name}" if pause.name == RELAY else pause.name)
        if pause.process == RELAY:
            process = f"relay{_option(database, pause.name)}"
        yield finding("paused", pause=pause, process=process)


def check_workers(database: Database) -> Iterator[Diagnosis]:
    """Workers that hang, whose machine's clock is wrong, or that publish elsewhere than others of their destination."""
    places = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for each in read_workers(database.connection):
        name = f"{each.kind} {printable_name(each.name)}" if each.name else each.kind
        host = printable_name(each.host)
        if each.silent_seconds is not None:
            age, place = span(each.silent_seconds), f"pid {each.pid} on {host}"
            yield finding("worker-silent", kind=name, place=place, age=age, pid=each.pid, host=host)
        if abs(each.skew or 0.0) >= database.limits.skew.total_seconds():
            far = f"{span(abs(each.skew or 0.0))} {'behind' if (each.skew or 0.0) > 0 else 'ahead of'}"
            is_worse = abs(each.skew or 0.0) >= window.CLOCK_SKEW.total_seconds()
            yield finding("clock-skew", worse=is_worse, skew=far, whose=f"that of {name} (pid {each.pid} on {host})")
        if each.kind == RELAY:
            exchange = f"exchange {printable_name(each.exchange)} at " if each.exchange is not None else ""
            places[each.name][f"{exchange}{printable_name(each.broker)}"].append(f"pid {each.pid} on {host}")
    for destination, each_place in places.items():
        if len(each_place) > 1:
            texts = tuple(f"{place} ({', '.join(relays)})" for place, relays in sorted(each_place.items()))
            yield finding("exchange-differs", destination=printable_name(destination), places=" and ".join(texts))


def check_relays(database: Database) -> Iterator[Diagnosis]:
    """Whether each destination whose messages wait has a relay, and whether that gets on."""
    paused = {pause.name for pause in read_pauses(database.connection) if pause.process == RELAY}
    ages = {name: age for name, age in _backlogs(database).items() if name not in paused}
    names: list[str] = []
    if database.is_server:
        names = [row.name for row in database.rows(activity.sessions())]
    patience = database.limits.waiting.total_seconds()
    late = {name: waits for name, (age, waits) in ages.items() if age >= patience}
    alone: dict[str, str] = {}
    for name, waits in late.items():
        if relays := sum(each == relay_name(name) for each in names):
            verb = "is" if relays == 1 else "are"
            connected = f"{many(relays, 'session')} of a relay for it {verb} connected"
            found = finding("relay-stuck", waits=waits, relays=connected, relay=_command(database, name))
            yield replace(found, rows={"destination": name})
        else:
            alone[name] = waits
    has_relay = any(each.startswith(RELAY_SESSION) for each in names)
    if not late and not has_relay and database.is_server:
        alone = {name: waits for name, (_, waits) in ages.items()}
    if alone:
        yield _of_alone(database, alone, worse=bool(late))


def _backlogs(database: Database) -> Mapping[str, tuple[float, str]]:
    """The destinations whose messages could go now, the longest wait first: the seconds, and the wait in words."""
    backlogs = dict[str, tuple[float, str]]()
    for (name,) in database.rows(status.destinations(), limit=LIMIT, most=MOST_DESTINATIONS):
        ready = database.rows(status.ready(), limit=LIMIT, destination=name)
        overdue = database.rows(status.overdue(), limit=LIMIT, destination=name, now=database.now)
        if rows := sum(count for count, _ in (*ready, *overdue)):
            oldest = min((at for _, at in (*ready, *overdue) if at is not None), default=database.now)
            age = max(0.0, (database.now - oldest).total_seconds())
            count = many(counted(rows), "message")
            backlogs[name] = age, f"{count}{_to(name)} could go now, and the oldest waits for {span(age)}"
    return dict(sorted(backlogs.items(), key=itemgetter(1), reverse=True))


def _of_alone(database: Database, alone: Mapping[str, str], *, worse: bool) -> Diagnosis:
    """The finding about all destinations without a relay, those first whose messages wait for longest."""
    more = len(alone) - _MOST_ALONE
    others = [f"and {many(more, 'other destination')}"] if more > 0 else []
    waits = "; ".join([*list(alone.values())[:_MOST_ALONE], *others])
    relay = "a relay for it" if len(alone) == 1 else "a relay for them"
    missing = f"no session of {relay} is connected" if database.is_server else "a file tells of no relay"
    relays = tuple(_command(database, name) for name in list(alone)[:_MOST_ALONE])
    found = finding("relay-missing", worse=worse, waits=waits, no_relay=missing, relays=relays)
    return replace(found, rows={"destination": next(iter(alone))}) if len(alone) == 1 else found


def _to(destination: str) -> str:
    return "" if destination == DEFAULT_DESTINATION else f" to {printable_name(destination)}"


def _option(database: Database, destination: str) -> str:
    """The option of a destination, unless the settings name this one."""
    return "" if destination == database.settings.destination else f" --destination {shell_word(destination)}"


def _command(database: Database, destination: str) -> str:
    if destination in (database.settings.destination, DEFAULT_DESTINATION):
        return f"outboxkit relay{_option(database, destination)}"
    return relay_command(destination)


def check_failing(database: Database) -> Iterator[Diagnosis]:
    """Types whose messages wait for a retry, because publishing them failed."""
    rows = [
        (name, row)
        for (name,) in database.rows(status.destinations(), limit=LIMIT, most=MOST_DESTINATIONS)
        for row in database.rows(status.failing(), limit=LIMIT, destination=name)
    ]
    for name, row in sorted(rows, key=lambda pair: -pair[1].rows)[:_MOST_TYPES]:
        messages = many(counted(row.rows), "message")
        found = finding(
            "type-failing",
            messages=f"{messages} of type {printable_name(row.type)} to {printable_name(name)}",
            attempts=f", after up to {many(row.attempts, 'attempt')}" if row.attempts else " for now",
            error=printable(row.last_error or "-", _LONGEST_ERROR),
        )
        yield replace(found, rows={"type": row.type, "destination": name})


def check_due(database: Database) -> Iterator[Diagnosis]:
    """Messages that are due so late that it may be a mistake."""
    far = database.limits.far
    for (name,) in database.rows(status.destinations(), limit=LIMIT, most=MOST_DESTINATIONS):
        last = database.value(status.furthest_due(), destination=name)
        if last is not None and last - database.now >= far:
            yield finding("due-far", to=_to(name), due=in_utc(last), days=far.days)


def check_retried(database: Database) -> Iterator[Diagnosis]:
    """Handlers whose messages failed at least twice, and are tried again."""
    for each in read_retried(database.connection)[:_MOST_TYPES]:
        yield finding(
            "handler-failing",
            messages=many(each.messages, "message"),
            are="is" if each.messages.value == 1 else "are",
            queue=printable_name(each.queue),
            handler=f"handler {printable_name(each.handler)}" if each.handler else "the consumer",
            attempts=many(each.attempt, "attempt"),
            error=printable(each.error, _LONGEST_ERROR),
            message=shell_word(each.message_id),
        )


def check_dead_letters(database: Database) -> Iterator[Diagnosis]:
    """Parked keys, and dead letters that wait for a decision."""
    for (name,) in database.rows(status.destinations(), limit=LIMIT, most=MOST_DESTINATIONS):
        for key, waiting, dead, keys, _ in database.rows(status.parked_keys(), limit=LIMIT, top=_TOP, destination=name):
            letters = database.rows(trace.parking(), key=key, destination=name, position=_LAST)
            for letter in letters[:1]:
                yield finding(
                    "key-parked",
                    key=f"{printable_name(key)}{_to(name)}",
                    waiting=many(counted(waiting), "message waits", "messages wait"),
                    dead=many(counted(dead), "dead letter"),
                    message=printable_name(letter.message_id),
                    error=printable(letter.error or letter.reason, _LONGEST_ERROR),
                    others=f" {many(counted(keys), 'key')}{_to(name)} are parked in all." if keys > _TOP else "",
                    number=letter.id,
                )
    yield from _of_open(database)


def _of_open(database: Database) -> Iterator[Diagnosis]:
    rows, oldest = database.rows(status.dead_open(), limit=LIMIT), database.rows(doctor.oldest_dead())
    if not rows or not oldest:
        return
    total = sum(row.rows for row in rows)
    parts = [(Count(row.rows, at_least=total > COUNTED), f"{row.side} {printable_name(row.reason)}") for row in rows]
    yield finding(
        "dead-letters",
        letters=many(counted(total), "dead letter is", "dead letters are"),
        reasons=tuple(f"{number(count)} {name}" for count, name in parts),
        age=span(max(0.0, (database.now - oldest[0].dead_at).total_seconds())),
        type=printable_name(oldest[0].type),
        error=printable(oldest[0].error or "-", _LONGEST_ERROR),
        groups=" --group-by error" if total > 1 else "",
        number=oldest[0].id,
    )


def check_effects(database: Database) -> Iterator[Diagnosis]:
    """Calls of which nobody knows whether they happened."""
    rows = database.value(status.unknown_effects(), limit=LIMIT, now=database.now)
    if rows:
        yield finding("effect-unknown", calls=many(counted(rows), "call"))
