"""`outboxkit status`: what needs attention, the messages that wait, and the processes at work."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

import typer

from outboxkit.cli.connections import connected
from outboxkit.cli.options import AsJson, with_options
from outboxkit.cli.wording import fold_width, folded, print_json
from outboxkit.errors.figures import many, number, printable_name, rate, span
from outboxkit.exit_codes import FAILED
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.operators.status import Figures, OfDestination, Outbox, Status, read_status
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.workers import RELAY, KnownWorker

LABEL = 14
SHOWN = 8
"""Findings, types, destinations and handlers that are shown; `--json` has all."""


@with_options()
def status(settings: Settings, *, as_json: AsJson = False) -> None:
    """Show what needs attention, waiting messages, dead letters, and the processes at work.

    Cheap for tables of any size: it counts ten thousand rows of a kind, and says so if there are more.
    Exit 1 if the tables cannot be read.

    Example: outboxkit status --json
    """
    report = asyncio.run(_read(settings))
    if as_json:
        print_json(report)
    else:
        for line in lines(report, width=fold_width()):
            typer.echo(line)
    sys.exit(0 if report.figures is not None else FAILED)


async def _read(settings: Settings) -> Status:
    async with connected(settings.database_url.get_secret_value(), "status", only_reads=True) as engine:
        return await read_status(Installation(settings, engine))


def lines(report: Status, *, width: int) -> Iterator[str]:
    """The whole report, folded to the width."""
    asks = ": `outboxkit doctor` does" if report.broker.startswith("amqp") else ""
    parts = [
        ("database", iter([report.database])),
        ("broker", iter([f"{report.broker}, not asked{asks}"])),
        ("advice", _advice(report.advice)),
        *(() if report.figures is None else _figures(report.figures)),
    ]
    for label, texts in parts:
        for index, text in enumerate(texts):
            start = (label if index == 0 else "").ljust(LABEL)
            inner = len(text) - len(text.lstrip())
            if inner and label == "advice":  # to paste: never folded
                yield start + text
            else:
                yield from folded(start + text, width, " " * (LABEL + inner + 2))


def _advice(findings: tuple[Diagnosis, ...]) -> Iterator[str]:
    for finding in findings[:SHOWN]:
        yield f"{finding.severity}: {finding.what}"
        if finding.code == "database-away":  # doctor, without this command's options, might look at another database
            yield finding.cure
            return
        yield from (f"  {command}" for command in finding.commands[:3])
    if len(findings) > SHOWN:
        yield f"and {many(len(findings) - SHOWN, 'more finding')}"
    if findings:
        yield "for the reason and the cure of each:"
        yield "  outboxkit doctor"


def _figures(figures: Figures) -> Iterator[tuple[str, Iterator[str]]]:
    yield "paused", (f"{printable_name(pause.what)} {pause.terms}" for pause in figures.paused)
    yield "outbox", _outbox(figures.outbox)
    processed = {printable_name(name): number(count) for name, count in figures.inbox.by_handler.items()}
    yield "inbox", _listed(f"{number(figures.inbox.processed)} processed", processed, "handlers")
    letters = figures.dead_letters
    resolved = f", {number(letters.resolved)} resolved" if letters.resolved.value else ""
    reasons = {
        f"{printable_name(row.side)}, {printable_name(row.reason)}": number(row.count) for row in letters.by_reason
    }
    yield "dead letters", _listed(f"{number(letters.open)} open{resolved}", reasons, "reasons")
    history = figures.history
    if history.oldest_published is not None:
        yield (
            "published",
            iter([f"{number(history.published)} kept, the oldest of {history.oldest_published:%Y-%m-%d %H:%M} UTC"]),
        )
    if history.requests.value:
        yield "idempotency", iter([f"{many(history.requests, 'key')} remembered"])
    relays = [[each] for each in figures.workers if each.kind == RELAY]
    unseen = "none connected" if figures.vacuum is not None else "not known: SQLite has no sessions"
    yield "relays", map(_worker, relays) if relays else iter([unseen])
    others = map(_worker, _by_process(each for each in figures.workers if each.kind != RELAY))
    shown = ", ".join(map(printable_name, figures.unconsumed[:SHOWN]))
    more = f" and {len(figures.unconsumed) - SHOWN} more" if len(figures.unconsumed) > SHOWN else ""
    yield "workers", iter([*others, *([f"no consumer of queue {shown}{more}"] if shown else [])])
    lengths = {name: length for each in figures.workers for name, length in each.queues.items()}
    yield "queues", (f"{printable_name(name)}: {many(length, 'message')}" for name, length in lengths.items() if length)
    if figures.vacuum is not None:
        last = f"{figures.vacuum.last_vacuum:%Y-%m-%d %H:%M} UTC" if figures.vacuum.last_vacuum else "never"
        yield "vacuum", iter([f"{many(figures.vacuum.dead_rows, 'dead row')} in the outbox, last vacuum {last}"])
    yield "tables", iter([f"version {figures.schema_version}"])


def _outbox(outbox: Outbox) -> Iterator[str]:
    types = sorted(outbox.by_type.items(), key=lambda each: (-each[1].pending.value, each[0]))
    shown = {
        printable_name(kind): number(rows.pending)
        + (f", {number(rows.failed_before)} failed before" if rows.failed_before.value else "")
        for kind, rows in types
    }
    yield from _listed(f"{number(outbox.pending)} pending{_age(outbox)}", shown, "types")
    if outbox.pending.value > outbox.ready.value:
        due = "" if outbox.next_due is None else f"; next due: {outbox.next_due:%Y-%m-%d %H:%M:%S} UTC"
        is_later = outbox.last_due is not None and outbox.last_due != outbox.next_due
        last = f", the last: {outbox.last_due:%Y-%m-%d %H:%M:%S} UTC" if is_later else ""
        yield f"{_states(outbox)}{due}{last}"
    for name, there in list(outbox.by_destination.items())[:SHOWN]:
        yield f"to {printable_name(name)}: {_states(there)}{_age(there)}"
    if len(outbox.by_destination) > SHOWN:
        yield f"and {len(outbox.by_destination) - SHOWN} more destinations"
    if outbox.parked_keys.value:
        yield f"{many(outbox.parked_keys, 'key')} parked"


def _age(counts: OfDestination) -> str:
    return "" if counts.oldest_age_seconds is None else f", the oldest for {span(counts.oldest_age_seconds)}"


def _states(counts: OfDestination) -> str:
    states = {"ready": counts.ready, "delayed": counts.delayed, "held": counts.held, "parked": counts.parked}
    return ", ".join(f"{number(count)} {name}" for name, count in states.items() if count.value)


def _by_process(workers: Iterable[KnownWorker]) -> Iterable[list[KnownWorker]]:
    """A process consumes several shards of one queue, each with a row of its own: they are one line."""
    processes = defaultdict[tuple[object, ...], list[KnownWorker]](list)
    for each in workers:
        processes[each.kind, each.name, each.process, each.rests, each.silent_seconds is None].append(each)
    return processes.values()


def _worker(shards: list[KnownWorker]) -> str:
    """`billing: pid 7 on shop-1 for 3 h, release 0.1, exchange outboxkit, 8 of 8 places taken, 3 messages a second`."""
    worker = shards[0]
    name = worker.name if worker.kind == RELAY or worker.name else worker.kind
    places = sum(each.places or 0 for each in shards)
    rates = [each.rate for each in shards if each.rate is not None]
    parts = [
        f"pid {worker.pid} on {printable_name(worker.host)} for {span(worker.age_seconds)}",
        *([] if len(shards) == 1 else [many(len(shards), "queue")]),
        f"release {printable_name(worker.release)}",
        *([] if worker.exchange is None else [f"exchange {printable_name(worker.exchange)}"]),
        *([] if not places else [f"{sum(each.taken or 0 for each in shards)} of {many(places, 'place')} taken"]),
        *([] if not rates else [f"{rate(sum(rates))} messages a second"]),
        *(["rests"] if worker.rests else []),
        *([] if worker.silent_seconds is None else [f"silent for {span(worker.silent_seconds)}"]),
    ]
    return f"{printable_name(name)}: {', '.join(parts)}"


def _listed(first: str, parts: dict[str, str], what: str) -> Iterator[str]:
    """A line, and below it its largest parts."""
    yield first
    for name, text in list(parts.items())[:SHOWN]:
        yield f"  {name}: {text}"
    if len(parts) > SHOWN:
        yield f"  and {len(parts) - SHOWN} more {what}"
