"""Replays and discards: each with a dry run first, then in the background, where it can be watched and stopped."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from outboxkit import ids, schema, statements
from outboxkit.console.visit import LONGEST, MOST_FORM_BYTES, Visit, decoded, page, whole_number
from outboxkit.errors import ConfigurationError
from outboxkit.errors.figures import shell_word
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators import background
from outboxkit.operators.background import Operation, Plan
from outboxkit.operators.deadletters import REASONS, SIDES, WINDOW, DeadLetters, ReplayRules, Selection
from outboxkit.operators.messages import read_now
from outboxkit.operators.replay import Replayer, ReplaySelection
from outboxkit.runtime import process
from outboxkit.statements.dead import GROUP_COLUMNS

T = TypeVar("T")
Action = Literal["replay", "discard"]
TEXTS = ("type", "key", "reason", "side", "destination", "handler", "error")
"""The filters of dead letters that are texts."""
CHOICES = {"side": SIDES, "reason": REASONS}
"""Those of them that have few values."""
FILTERS = (*TEXTS, "older", "newer", *(f"same_{name}" for name in GROUP_COLUMNS))
"""The parameters of a query that narrow down dead letters."""
UNREADABLE = "This form cannot be read. Nothing was done; make a dry run again."
MOST_RATE = 100_000
MOST_JUDGED = 2000
"""Dead letters that a dry run judges one by one; the operation judges all."""


async def dead_plan(visit: Visit) -> Response:
    """Show what a replay or a discard of dead letters would do; a POST begins it."""
    if visit.form:
        discards, why, chosen = _discards(visit.sent("action")), visit.sent("why") or None, _sent(visit, Selection)
        if chosen.error:
            visit.need("payload")
        if discards and why is None:
            raise HTTPException(400, "No reason was given: those who look for these messages need one.")
        _need_choice(chosen.numbers, visit.sent("all"))
        plan = Plan(
            "dead discard" if discards else "dead replay",
            visit.access.user,
            dead=chosen,
            upto=whole_number(visit.sent("upto"), UNREADABLE),
            rate=_rate(visit),
            accept_stale=bool(visit.sent("accept_stale")),
            why=why,
        )
        return await _begin(visit, plan)
    discards = _discards(visit.asked("action") or "replay")
    numbers = asked_numbers(visit)
    _need_choice(numbers, visit.asked("all"))
    now = await visit.read(read_now)
    selection = replace(asked_selection(visit, now), numbers=numbers)
    settings = visit.console.installation.settings
    rules = ReplayRules(
        settings.inbox_retention, accept_stale=bool(visit.asked("accept_stale")), has_readers=bool(settings.readers)
    )
    judged = 0 if discards else MOST_JUDGED
    survey = await DeadLetters(visit.console.engine, rules=rules).survey(selection, window=WINDOW, judged=judged)
    return visit.page(
        "dead_plan.html",
        survey=survey,
        count=survey.count if discards else survey.replayable,
        filters={name: visit.asked(name) for name in FILTERS},
        numbers=numbers,
        discards=discards,
        selection=msgspec.json.encode(selection).decode(),
        command=None if selection.same and not numbers else " ".join(_dead_command(visit, numbers, discards=discards)),
        now=now,
        judged=MOST_JUDGED,
        window=WINDOW,
        form=ids.new(),
    )


def asked_numbers(visit: Visit) -> tuple[int, ...]:
    """The numbers of dead letters that were chosen."""
    return tuple(
        whole_number(text, f"{text[:20]!r} is no number of a dead letter: choose them in the list. Nothing was done.")
        for text in visit.request.query_params.getlist("id")
    )


def asked_selection(visit: Visit, now: datetime) -> Selection:
    """The dead letters that match the filters of the query."""
    older, newer = visit.age("older"), visit.age("newer")
    texts: dict[str, Any] = {name: visit.asked(name) for name in TEXTS}
    for name, options in CHOICES.items():
        visit.choice(name, options)
    refusal = "This link to a group cannot be read: open it from the list."
    same = [(name, number) for name in GROUP_COLUMNS if (number := visit.asked(f"same_{name}")) is not None]
    return Selection(
        before=None if older is None else now - older,
        since=None if newer is None else now - newer,
        same=tuple((name, whole_number(number, refusal)) for name, number in same),
        **texts,
    )


def _discards(action: str) -> bool:
    if action not in get_args(Action):
        raise HTTPException(400, f"“action” is {action[:20]!r}: replay or discard is accepted. Nothing was done.")
    return action == "discard"


def _need_choice(numbers: Collection[int], all_: str | None) -> None:
    """Refuse an empty choice: it never means all."""
    if numbers and all_:
        raise HTTPException(400, "Dead letters were chosen, and all: take one of both. Nothing was done.")
    if not numbers and all_ != "yes":
        raise HTTPException(
            400, "Nothing was chosen: go back and check dead letters in the list, or take all that match its filters."
        )


def _dead_command(visit: Visit, numbers: Collection[int], *, discards: bool) -> Iterator[str]:
    """The words of the command line that does the same."""
    yield f"outboxkit dead {'discard' if discards else 'replay'}"
    if numbers:  # they match the filters of their list; the command takes either
        yield from map(str, numbers)
    else:
        given = {name: visit.asked(name) for name in TEXTS}
        given |= {"since": visit.asked("newer"), "until": visit.asked("older")}
        yield from _options(given) or ["--all"]
    if visit.asked("accept_stale") and not discards:
        yield "--accept-stale"


def _options(given: Mapping[str, str | None]) -> list[str]:
    return [f"--{name} {shell_word(value)}" for name, value in given.items() if value is not None]


async def replay(visit: Visit) -> Response:
    """Ask which kept messages a queue is to get again, and show how many they are; a POST begins it."""
    if visit.form:
        to_queue, chosen = visit.sent("to_queue"), _sent(visit, ReplaySelection)
        if not to_queue or len(to_queue.encode(errors="replace")) > LONGEST:
            raise HTTPException(400, f"“to_queue” is no name of a queue: 1 to {LONGEST} bytes are accepted.")
        _replayer(visit, chosen, to_queue)
        plan = Plan("republish", visit.access.user, kept=chosen, to_queue=to_queue, rate=_rate(visit))
        return await _begin(visit, plan)
    queues, now = await visit.read(_queues), await visit.read(read_now)
    queue, older, newer = visit.asked("to_queue"), visit.age("older"), visit.age("newer")
    shown: dict[str, Any] = {"kept": None, "selection": None, "command": ""}
    if queue is not None:
        given = {name: visit.asked(name) for name in ("type", "key", "handler", "destination")}
        selection = ReplaySelection(
            given["type"],
            given["key"],
            since=None if newer is None else now - newer,
            until=now if older is None else now - older,
            destination=given["destination"] or DEFAULT_DESTINATION,
            handlers=() if given["handler"] is None else (given["handler"],),
        )
        times = {"since": selection.since, "until": selection.until}
        given |= {name: None if at is None else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}" for name, at in times.items()}
        shown = {
            "kept": await _replayer(visit, selection, queue).find(window=WINDOW),
            "selection": msgspec.json.encode(selection).decode(),
            "command": " ".join([f"outboxkit republish --to-queue {shell_word(queue)}", *_options(given)]),
        }
    return visit.page("replay.html", queue=queue, queues=queues, window=WINDOW, form=ids.new(), **shown)


def _queues(connection: Connection) -> list[str]:
    schema.check_readable(connection)
    return [row.queue for row in connection.execute(statements.handlers.of_all_queues())]


def _replayer(visit: Visit, selection: ReplaySelection, queue: str) -> Replayer:
    settings = visit.console.installation.settings
    try:
        publisher = process.queue_publisher(
            settings.broker_url.get_secret_value(), queue, timeout=settings.publish_timeout
        )
    except ConfigurationError as error:
        raise HTTPException(400, f"The console cannot replay to a queue: {error}.") from None
    return Replayer(visit.console.engine, publisher, selection, patience=settings.publish_timeout)


async def operations(visit: Visit) -> Response:
    """Show the operations that have not ended."""
    return visit.page("operations.html", operations=await visit.read(background.read_operations))


async def operation(visit: Visit) -> Response:
    """Show how far an operation has come, or its outcome."""
    one = await visit.read(background.read_operation, _id(visit.asked("id") or ""))
    if one is None:
        raise HTTPException(404, "There is no such operation.")
    is_open = isinstance(one, Operation)
    asked_for = msgspec.json.decode(one.filter) if isinstance(one, Operation) else one.filter
    return visit.page("operation.html", one=one, is_open=is_open, asked_for=asked_for, now=await visit.read(read_now))


async def stop(visit: Visit) -> Response:
    """Ask for the end of an operation."""
    number = _id(visit.sent("id"))
    await visit.write(background.stop_operation, number, by=visit.access.user)
    return visit.back_to("operation", id=number)


async def _begin(visit: Visit, plan: Plan) -> Response:
    """Begin the one operation of a form, however often it is sent."""
    form = visit.sent("form", longest=36)
    if not form:
        raise HTTPException(400, UNREADABLE)
    try:
        number = await visit.write(background.begin_operation, plan, total=_number(visit, "total"), form=form)
    except IntegrityError:  # it was sent twice, or again after its answer was lost
        begun = await visit.read(background.operation_of_form, form)
        if begun is None:
            raise
        number = begun
    visit.console.background.wake()
    return visit.back_to("operation", id=number)


def _id(text: str) -> int:
    return whole_number(text, "An operation has a number: open it from the list.")


def _number(visit: Visit, name: str) -> int | None:
    text = visit.sent(name)
    return whole_number(text, f"“{name}” is {text[:20]!r}: a whole number is accepted.") if text else None


def _rate(visit: Visit) -> int | None:
    rate = _number(visit, "rate")
    if rate is not None and not 0 < rate <= MOST_RATE:
        raise HTTPException(400, f"“rate” is {rate}: 1 to {MOST_RATE} messages a second are accepted, or nothing.")
    return rate


def _sent(visit: Visit, kind: type[T]) -> T:
    text = visit.sent("selection", longest=MOST_FORM_BYTES)
    return decoded(text, kind, UNREADABLE)


ROUTES = (
    page("/dead/plan", dead_plan, name="dead-plan", methods=("GET", "POST")),
    page("/replay", replay, methods=("GET", "POST")),
    page("/operations", operations),
    page("/operation", operation),
    page("/operation/stop", stop, name="stop", methods=("POST",)),
)
