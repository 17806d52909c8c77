"""`assert_effects_once`: a handler is delivered its message in all the ways that can go wrong, on a real database.

Each trial begins with the same rows, and ends in a comparison: what it has changed must be what one delivery changes.
"""

import json
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError

from outboxkit.codec import payloads
from outboxkit.errors import DecodeError, TransactionRequired, sqlstates
from outboxkit.inbox import Handler
from outboxkit.message import Message, changed
from outboxkit.testing.database import TrialDatabase
from outboxkit.testing.differences import Changes, difference, may_tell_time, varying
from outboxkit.testing.messages import message_for, spec_of
from outboxkit.testing.outside import AFTER, FILE, STATEMENT
from outboxkit.testing.trials import PATIENCE, Ending, Trials

STATEMENTS = 12
"""The number of statements that are made to fail, and of awaits that are cancelled."""
VARIANTS = 3
"""The number of fields of an event that are changed, to have other events."""
ROWS = 6


class Finding(NamedTuple):
    """A way in which the effects of a handler are not what one delivery does."""

    title: str
    lines: Sequence[str] = ()
    cure: str = ""


def assert_effects_once(
    handler: Callable[..., Any] | Handler,
    event: object,
    *,
    engine: Any,
    others: Collection[object] = (),
    ignore: Collection[str] = (),
    outside: Collection[str] = (),
    watch: Callable[[], object] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Assert that the handler's effects happen once, whatever happens around the delivery of its message.

    Each trial begins with the same rows of the database, which are put back in the end: it must be one for tests, with
    at most 10 000 rows. An effect outside of the handler's session is a finding, and really happens.

    Args:
        handler: a function with `@inbox_handler`, or its `Handler`.
        event: the event, or a `Message`, which gets a new id in each trial.
        engine: an `Engine` or `AsyncEngine`. What the handler needs is committed there.
        others: further events for the same handler, to be handled at the same time. Some are made from `event`, too.
        ignore: patterns of tables, of `table.column` and of variables that are not compared.
        outside: patterns of what the handler may do outside of its session, by the names that the report has.
        watch: returns a value that a second attempt must not change, such as the list of a fake mail server.
        patience: seconds that one delivery may take.

    Raises:
        AssertionError: they do not. The text names the trial, and the tables and rows that differ.
        ConfigurationError: the engine cannot be used for this, or the handler handles other events.
    """
    __tracebackhide__ = True
    spec = spec_of(handler)
    for each in (event, *others):
        message_for(spec, each)
    with (
        closing(TrialDatabase(engine)) as database,
        Trials(database, spec, event, others, ignore=ignore, outside=outside, watch=watch, patience=patience) as trials,
    ):
        problems = _problems(trials)
    if problems:
        raise AssertionError(_report(spec, problems)) from trials.single.error
    if not trials.has_effects:
        warnings.warn(f"handler {spec.name!r} has changed nothing. {_NOTHING}", stacklevel=2)


def _problems(trials: Trials) -> list[Finding]:
    """The problems of the first trial that shows any."""
    __tracebackhide__ = True
    for trial in TRIALS:
        trials.title = trial.__name__.replace("_", " ")
        problems = list(trial(trials))
        if problems := [*_outside(trials), *problems]:
            return problems
    return []


def _outside(trials: Trials) -> Iterator[Finding]:
    """The findings about effects outside of the session so far."""
    effects = list(trials.recorder.effects)
    for kind in dict.fromkeys(effect.kind for effect in effects):
        of_kind = [effect for effect in effects if effect.kind == kind]
        names = ", ".join(repr(effect.target) for effect in of_kind[:2])
        cure = _OUTBOX if kind == AFTER else f"{_CURES.get(kind, _OUTSIDE_CURE)}; if it is meant: outside=[{names}]"
        lines = [f"    {target}" + (f", at {line}" if line else "") for _, target, line in of_kind[:ROWS]]
        yield Finding(kind, lines, cure)


def _differs(trials: Trials, title: str, cure: str = "", expected: Sequence[Changes] = ()) -> Iterator[Finding]:
    """A problem, if the changes are not the expected ones: by default those of one delivery."""
    actual = trials.changes()
    lines = [difference(each, actual, trials.varied) for each in expected or (trials.expected,)]
    if all(lines):
        yield Finding(title, min(lines, key=len), cure)


def single_deliveries(trials: Trials) -> Iterator[Finding]:
    """Two, from the same rows: what differs between them varies, and is not compared later on."""
    first = trials.single = trials.deliver(trials.message())
    if first.error is not None:
        title = "it failed at its first delivery, so that nothing can be compared"
        cure = _TABLES if sqlstates.is_missing_table(first.error) else ""
        yield Finding(title, [f"    {_shown(first.error)}"], cure)
        return
    trials.has_effects = trials.recorder.acted or bool(trials.changes(all_of_them=True))
    trials.expected = trials.changes()
    for each in first.left:
        yield Finding(f"it leaves {each} behind, which goes on after its transaction", cure=_AWAIT)
    for each in dict.fromkeys(trials.recorder.forgotten):
        yield Finding(
            f"it calls {each} and does not await it, so that nothing of it is done", cure=f"await {each}(...)"
        )
    if first.left or trials.recorder.effects:
        return
    if may_tell_time(trials.expected):
        time.sleep(1)  # so that this value varies, too
    trials.database.restore()
    error = trials.deliver(trials.message()).error
    second = trials.changes()
    varied = varying(trials.expected, second)
    if error is not None or varied is None:
        lines = [f"    the second one fails: {_shown(error)}"] if error else difference(trials.expected, second, {})
        yield Finding("two single deliveries from the same rows do not do the same", lines, _CHANCE)
    trials.varied = varied or {}


def a_second_message(trials: Trials) -> Iterator[Finding]:
    """A second message of the same event. The handler may refuse it by an error, and not end the transaction."""
    trials.database.restore()
    trials.deliver(trials.message())
    error = trials.deliver(trials.message()).error
    if isinstance(error, TransactionRequired) or type(error) in (InvalidRequestError, PendingRollbackError):
        yield Finding("a second message of the same event fails, each time", [f"    {_shown(error)}"], _SAVEPOINT)


def a_rollback(trials: Trials) -> Iterator[Finding]:
    """The transaction is rolled back, and the message comes again: nothing is counted or remembered twice."""
    yield from _lost(trials, Ending.ROLLBACK)


def a_lost_connection(trials: Trials) -> Iterator[Finding]:
    """The server kills the connection before the commit, and no hook is called. The message comes again."""
    yield from _lost(trials, Ending.KILLED)


def _lost(trials: Trials, ending: Ending) -> Iterator[Finding]:
    trials.database.restore()
    message = trials.message()
    trials.deliver(message, ending=ending)
    if left := difference({}, trials.changes(), trials.varied):
        yield Finding(f"what stays after {ending}", left, _SESSION)
    remembered, files = trials.remembered(), trials.recorder.files()
    again = trials.deliver_until_handled(message)
    if again.error is not None:
        yield Finding(f"{ending}, then again: it fails with {_shown(again.error)}")
    if ending is Ending.ROLLBACK:
        now = trials.remembered()
        trials.recorder.compare(files)
        if changed := [name for name in now if now[name] != remembered.get(name)]:
            lines = [f"    {name}{'' if 'environ' in name else f' = {now[name][:100]}'}" for name in changed[:ROWS]]
            yield Finding("a retry counts or remembers again in variables", lines, _VARIABLES)
    yield from _differs(trials, f"{ending}, then again", _AGAIN)


def a_statement_fails(trials: Trials) -> Iterator[Finding]:
    """Each statement fails once: a handler that goes on must do all the same, or something else instead."""
    for number in range(1, min(trials.single.statements, STATEMENTS) + 1):
        trials.database.restore()
        trial = trials.deliver(trials.message(), failure=number)
        if trial.error is None and trial.failed_statement is not None:
            statement = " ".join(trial.failed_statement.split())[:100]
            title = f"it swallows the error of a statement that fails, and counts as done: {statement}"
            findings = list(_differs(trials, title, _SWALLOWED))
            if not any(line.startswith("    +") for each in findings for line in each.lines):  # it did no other thing
                yield from findings


def a_cancellation(trials: Trials) -> Iterator[Finding]:
    """An await is cancelled, as by a timeout or a stop: a handler that goes on must do all the same."""
    for number in range(1, min(trials.single.suspensions, STATEMENTS) + 1):
        trials.database.restore()
        is_swallowed = trials.deliver(trials.message(), cancelled=number).error is None
        if findings := list(
            _differs(trials, "it swallows a cancellation, and counts as done", _SWALLOWED) if is_swallowed else ()
        ):
            yield from findings
            return


class Meeting(NamedTuple):
    """Two events to be handled at once, after earlier ones, and the changes by the two one after the other.

    `fails`: whether one of them fails then, as the second order of the last item in stock.
    """

    earlier: Sequence[Any]
    events: tuple[Any, Any]
    serial: Sequence[Changes]
    description: str
    fails: bool


def one_batch(trials: Trials) -> Iterator[Finding]:
    """Two messages in one transaction, as a consumer handles them; one by one, if that fails."""
    for meeting in _meetings(trials) if trials.handler.batch else ():
        messages = _prepare(trials, meeting.earlier, meeting.events)
        if trials.deliver(messages[0], batch=messages[1:]).error is not None:
            for message in messages:
                trials.deliver_until_handled(message)
        yield from _differs(trials, f"{meeting.description}, in one batch", _BATCH, meeting.serial[:1])


def two_at_once(trials: Trials) -> Iterator[Finding]:
    """Two messages at once, each of them as the first one: the end must be that of a serial order."""
    for meeting in _meetings(trials):
        first, second = meeting.events
        for events in ((first, second),) if first is second else ((first, second), (second, first)):
            title = f"{meeting.description}, at once"
            error = _meet(trials, _prepare(trials, meeting.earlier, events))
            problem = [] if error is None or meeting.fails else [Finding(title, [f"    {_shown(error)}"], _UPSERT)]
            if problem := problem or list(_differs(trials, title, _LOCK, meeting.serial)):
                yield from problem
                return


def _meet(trials: Trials, messages: Sequence[Message]) -> BaseException | None:
    """Handle two messages at once; the error of one that found a row which was not there when it looked.

    The first transaction stops before its commit. Meanwhile the second one reads what was there before, and runs to its
    end, or until it waits for a lock of the first. A file has one writer, so nothing can run meanwhile. There the
    second one runs after the first, and until its first write or lock it reads the rows as they were before.
    """
    if trials.database.is_server:
        first = trials.begin(messages[0], pauses=True)
        trials.wait_for(first, first.paused)
        second = trials.begin(messages[1])
        trials.wait_for(second, second.ended)
        first.released.set_result(None)
        met = [trials.wait(each) for each in (first, second)]
    else:
        stale = trials.database.read()
        met = [trials.deliver(messages[0]), trials.deliver(messages[1], stale=stale)]
    failed = [(each.error, trials.deliver_until_handled(each.message).error) for each in met if each.error is not None]
    errors = (error if isinstance(error, IntegrityError) else again for error, again in failed)
    return next(filter(None, errors), None)


def _prepare(trials: Trials, earlier: Sequence[Any], events: Sequence[Any]) -> list[Message]:
    """Go back to the rows from which the events begin. Returns new messages of them."""
    trials.database.restore()
    for event in earlier:
        trials.deliver(trials.message(event))
    return [trials.message(event) for event in events]


def _meetings(trials: Trials) -> Iterator[Meeting]:
    """The meetings of the handler's event with the same once more, with variants of it, and with other events.

    Those are left out of which each fails one after the other, too.
    """
    own = trials.message()
    choices: list[tuple[str, object]] = [("two messages of the same event", own)]
    choices += [(f"two messages that differ in {name!r}", each) for name, each in _variants(trials.handler, own)]
    choices += [(f"beside {other!r}", other) for other in trials.others]
    for description, other in choices:
        for earlier, after in (((), ""), ((own,), ", after an earlier one")):
            serial = [_serial(trials, earlier, pair) for pair in ((own, other), (other, own))]
            fails = [failed for _, failed in serial]
            if max(fails) < 2:
                yield Meeting(earlier, (own, other), [each for each, _ in serial], f"{description}{after}", any(fails))


def _serial(trials: Trials, earlier: Sequence[Any], events: Sequence[Any]) -> tuple[Changes, int]:
    """The changes by these events one after the other, and how many fail, also when they come again."""
    messages = _prepare(trials, earlier, events)
    failed = [message for message in messages if trials.deliver(message).error is not None]
    failed = [message for message in failed if trials.deliver(message).error is not None]
    return trials.changes(), len(failed)


def _variants(handler: Handler, message: Message) -> Iterator[tuple[str, Message]]:
    """The message with one field changed: a number or a text, if there is another one that is an event."""
    document, count = json.loads(message.payload), 0
    for name, value in document.items() if isinstance(document, dict) else ():
        if count == VARIANTS:
            return
        for other in _others(value):
            payload = json.dumps({**document, name: other}).encode()
            with suppress(DecodeError):
                payloads.decode(handler.event_type, payload)
                count += 1
                yield name, changed(message, payload=payload)
                break


def _others(value: object) -> Iterator[object]:
    """Other values of the kind: of a text a longer one, and ones with another end, as ids, dates and decimals take."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value + 1
    elif isinstance(value, str):
        yield f"{value}-2"
        yield from (value[:-1] + end for end in "12" if value and value[-1] != end)


TRIALS: tuple[Callable[[Trials], Iterator[Finding]], ...] = (
    single_deliveries,
    a_second_message,
    a_rollback,
    a_lost_connection,
    a_statement_fails,
    a_cancellation,
    one_batch,
    two_at_once,
)


def _shown(error: BaseException | None) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {' '.join(line for line in lines[:2] if not line.startswith('['))}"[:300]


_AWAIT = "await the task, or join the thread, before the handler returns"
_OUTBOX = "add a message to the outbox instead, and let its handler do that"
_BATCH = (
    "with batch=True messages share a session: flush what the next one must see, leave alone what is in it, or remove "
    "batch=True"
)
_CHANCE = "what a handler does must follow from its event and the rows, and not from the clock, chance or memory"
_SESSION = "do everything in the session that the handler is given, and do not commit"
_AGAIN = "let it remember in rows of its own session, which go with the rollback, and not in variables"
_OUTSIDE_CURE = (
    "a rollback does not undo this, and a retry repeats it. Use effects.once, give it a key that is the same at each "
    "attempt (message.id), or add a message to the outbox"
)
_CURES = {STATEMENT: _SESSION, FILE: "write the same file with the same content each time, or one that it removes"}
_VARIABLES = f'{_AGAIN}; if it is meant, ignore=["..."] has the name'
_SAVEPOINT = "put a statement that may fail into session.begin_nested()"
_NOTHING = "If it ought to, commit the rows that it needs before, and look whether it writes to its own session"
_LOCK = "let the statement compute (SET n = n + 1), or lock the row that is read (with_for_update, version_id_col)"
_UPSERT = "between the look and the insert another transaction inserts: use INSERT ... ON CONFLICT"
_TABLES = "create the tables of the models in the database of the test, such as by Base.metadata.create_all(engine)"
_SWALLOWED = "let errors out of the handler, so that the message comes again"


def _report(handler: Handler, problems: Sequence[Finding]) -> str:
    lines = [f"the effects of handler {handler.name!r} do not happen once"]
    for title, shown, cure in problems:
        lines += ["", title, *shown, *([f"  to do: {cure}"] if cure else [])]
    if any(line.startswith(("    - ", "    + ")) for line in lines):
        lines += ["", "(- expected, + in this trial)"]
    return "\n".join(lines)
