"""`assert_effects_once`: a handler is delivered its message in all the ways that can go wrong, on a real database.

Each trial begins with the same rows, and ends in a comparison: what it has changed must be what one delivery changes.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from outboxkit.errors import TransactionRequired, sqlstates
from outboxkit.inbox import Handler, Outcome, handler_of
from outboxkit.testing.bench import Bench, open_bench
from outboxkit.testing.differences import Changes, difference, varying
from outboxkit.testing.memory import VARIABLES
from outboxkit.testing.messages import message_for
from outboxkit.testing.outside import OUTSIDE
from outboxkit.testing.races import Meeting, meetings
from outboxkit.testing.reading import SEQUENCES
from outboxkit.testing.trial import Ending

STATEMENTS = 12
"""The number of statements of a handler that are made to fail, or between which another message is handled."""
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Finding:
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
    watch: Callable[[], object] | None = None,
    answers: Mapping[str, Callable[..., Any]] | None = None,
) -> None:
    """Assert that the handler's effects happen once, whatever happens around the delivery of its message.

    Delivers the event in real transactions, each time from the same rows. It comes twice, and twice at once; with a
    rollback, or a killed connection, before the commit; with a crash after it. Then with each of its statements
    failing, among other messages, and between two statements of another message.

    All tables are compared with those after one delivery: also the outbox, what was done outside the database, and the
    variables of the handler's modules.

    The rows of the database are put back in the end. It must be one for tests, with at most 10 000 rows.

    Args:
        handler: a function with `@inbox_handler`, or its `Handler`.
        event: the event, or a `Message`, which gets a new id in each trial.
        engine: an `Engine` or `AsyncEngine`, or a session or sessionmaker with one. What the handler needs is
            committed there.
        others: further events for the same handler, to be handled at the same time. Some are made from `event`, too.
        ignore: patterns of tables, and of `table.column`, that are not compared.
        watch: returns a value that is compared, too, such as the list of a fake mail server.
        answers: functions that answer instead of the outside world. `httpx` and `requests` get the request and return
            a response; `mail` gets the sender, the recipients and the text. Without one the call is really made.

    Raises:
        AssertionError: they do not. The text names the trial, and the tables and rows that differ.
        ConfigurationError: the engine cannot be used for this, or the handler handles other events.
    """
    __tracebackhide__ = True
    spec = handler if isinstance(handler, Handler) else handler_of(handler)
    for each in (event, *others):
        message_for(spec, each)
    with open_bench(spec, event, engine=engine, ignore=ignore, watch=watch, answers=answers) as bench:
        problems = _problems(bench, others)
    if problems:
        raise AssertionError(_report(spec, problems))
    if not bench.has_effects:
        warnings.warn(f"handler {spec.name!r} has changed nothing. {_NOTHING}", stacklevel=2)


def _problems(bench: Bench, others: Collection[object]) -> list[Finding]:
    """The problems of the first group of trials that shows any."""
    __tracebackhide__ = True
    for trials in (_once, _repeated, _second, _lost, _at_once, _failing, partial(_among_others, others=others)):
        if problems := list(trials(bench)):
            return problems
    return []


def _differs(bench: Bench, title: str, cure: str = "", expected: Sequence[Changes] = ()) -> Iterator[Finding]:
    """A problem, if the changes are not the expected ones: by default those of one delivery."""
    actual = bench.changes()
    lines = [difference(each, actual, bench.varied, extra_only=OUTSIDE) for each in expected or (bench.expected,)]
    if all(lines):
        yield Finding(title, min(lines, key=len), cure)


def _once(bench: Bench) -> Iterator[Finding]:
    """Two single deliveries from the same rows: what differs between them varies, and is not compared later on."""
    __tracebackhide__ = True
    bench.reset()
    first = bench.deliver(bench.message())
    if first.error is not None:
        hint = f"\n  to do: {_TABLES}" if sqlstates.is_missing_table(first.error) else ""
        raise AssertionError(
            f"handler {bench.handler.name!r} failed at its first delivery, so that nothing can be compared: "
            f"{type(first.error).__name__}: {first.error}{hint}"
        ) from first.error
    bench.has_effects = bench.has_changes()
    bench.look_for_sequences()
    bench.expected, bench.statements, bench.reads = bench.changes(), first.statements, first.reads
    for each in first.left:
        yield Finding(f"it leaves {each} behind, which goes on after its transaction", cure=_AWAIT)
    for each in dict.fromkeys(bench.recorder.forgotten):
        yield Finding(
            f"it calls {each} and does not await it, so that nothing of it is done", cure=f"await {each}(...)"
        )
    if done := bench.recorder.after_commit():
        yield Finding("it acts after its commit; a crash between the two loses that", [f"    {done}"], cure=_OUTBOX)
    if first.left:
        return
    bench.reset()
    if not bench.has_sequences:
        bench.database.advance(bench.start)
    bench.deliver(bench.message())
    second = bench.changes()
    varied = varying(bench.expected, second, extra_only=OUTSIDE)
    if varied is None:
        lines = difference(bench.expected, second, {})
        yield Finding("two single deliveries from the same rows do not do the same", lines, _CHANCE)
    bench.varied = varied or {}


def _repeated(bench: Bench) -> Iterator[Finding]:
    """The message comes again after its commit: at once, late, and because the process ended before the ack."""
    for title, ending in (("delivered twice", Ending.COMMIT), ("a crash after the commit, then again", Ending.CRASH)):
        bench.reset()
        message = bench.message()
        bench.deliver(message, ending)
        again = bench.deliver(message)
        if again.outcome is not Outcome.DUPLICATE:
            yield Finding(f"{title}: the second delivery is {again.outcome or again.error!r}, and not a duplicate")
        yield from _differs(bench, title, _OUTBOX)


def _second(bench: Bench) -> Iterator[Finding]:
    """A second message of the same event. The handler may refuse it by an error, and not end the transaction."""
    bench.reset()
    bench.deliver(bench.message())
    error = bench.deliver(bench.message()).error
    if isinstance(error, TransactionRequired):
        yield Finding("a second message of the same event fails, each time", [f"    {_shown(error)}"])


def _lost(bench: Bench) -> Iterator[Finding]:
    """The transaction is lost before its commit, and the message comes again."""
    for title, ending in (("a rollback", Ending.ROLLBACK), ("a connection lost before the commit", Ending.KILLED)):
        bench.reset()
        message = bench.message()
        bench.deliver(message, ending)
        tables = {
            name: each
            for name, each in bench.changes().items()
            if name not in (*OUTSIDE, SEQUENCES) and not name.startswith(VARIABLES)
        }
        if left := difference({}, tables, bench.varied):
            yield Finding(f"what stays after {title}", left, _SESSION)
        again = bench.settle(message)
        if again.error is not None:
            yield Finding(f"{title}, then again: it fails with {_shown(again.error)}")
        for each in _differs(bench, f"{title}, then again", _OUTSIDE_CURE):
            is_less = not any(line.startswith("    +") for line in each.lines)
            yield replace(each, cure=_MEMORY) if is_less else each


def _at_once(bench: Bench) -> Iterator[Finding]:
    """The message is delivered twice at once: the second transaction waits for the end of the first one."""
    for title, ending in (("twice at once", Ending.COMMIT), ("twice at once, the first rolled back", Ending.ROLLBACK)):
        bench.reset()
        message = bench.message()
        first = bench.start_delivery(message, ending, pause=bench.statements + 1)
        bench.trials.wait_for_pause(first)
        second = bench.start_delivery(message)
        if bench.database.is_server:
            bench.trials.wait_for_end_or_lock(second)
        first.release()
        for each in (first, second):
            if bench.trials.wait(each).error is not None:
                bench.settle(message)
        yield from _differs(bench, title, _OUTSIDE_CURE)


def _failing(bench: Bench) -> Iterator[Finding]:
    """Each statement fails once: a handler that goes on must do all the same, or something else instead."""
    for number, in_python in product(range(1, min(bench.statements, STATEMENTS) + 1), (False, True)):
        bench.reset()
        delivery = bench.deliver(bench.message(), failure=number, fails_in_python=in_python)
        if delivery.error is None and delivery.failed_statement is not None:
            statement = " ".join(delivery.failed_statement.split())[:100]
            title = f"it swallows the error of a statement that fails, and counts as done: {statement}"
            findings = list(_differs(bench, title, _SWALLOWED))
            if not any(line.startswith("    +") for each in findings for line in each.lines):  # it did no other thing
                yield from findings


def _among_others(bench: Bench, others: Collection[object]) -> Iterator[Finding]:
    """Another message is handled at the same time, in the middle of this one, and between its two deliveries."""
    problems: dict[str, Finding] = {}
    for meeting in meetings(bench, others):
        meeting.prepare(bench)
        message, other = (bench.message(event) for event in meeting.events)
        for each in (message, other, message):
            bench.deliver(each)
        title = f"again after another message ({meeting.description})"
        late = list(_differs(bench, title, _OUTBOX, meeting.serial[:1]))
        late += _in_a_batch(bench, meeting) if bench.handler.batch else ()
        for pause in meeting.pauses(bench, STATEMENTS):
            error = meeting.hold(bench, pause)
            title = f"{meeting.description}, at once"
            if error is not None:
                problems.setdefault(_UPSERT, Finding(title, [f"    {_shown(error)}"], _UPSERT))
            elif _LOCK not in problems:
                problems.update((_LOCK, each) for each in _differs(bench, title, _LOCK, meeting.serial))
        if late or len(problems) > 1:
            yield from late
            break
    yield from problems.values()


def _in_a_batch(bench: Bench, meeting: Meeting) -> Iterator[Finding]:
    """Both in one transaction, as a consumer handles them; one by one, if that fails."""
    meeting.prepare(bench)
    messages = [bench.message(event) for event in meeting.events]
    if bench.deliver(messages[0], batch=messages[1:]).error is not None:
        for message in messages:
            bench.settle(message)
    yield from _differs(bench, f"{meeting.description}, in one batch", _BATCH, meeting.serial[:1])


def _shown(error: BaseException) -> str:
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
_OUTSIDE_CURE = (
    "a rollback does not undo this. Give it a key that is the same at each attempt (message.id), use effects.once, "
    "or add a message to the outbox"
)
_NOTHING = "If it ought to, commit the rows that it needs before, and look whether it writes to its own session"
_MEMORY = "it takes its work for done: let it remember in rows, which go with the rollback, and not in variables"
_LOCK = "let the statement compute (SET n = n + 1), or lock the row that is read (with_for_update, version_id_col)"
_UPSERT = "between the look and the insert another transaction inserts: use INSERT ... ON CONFLICT"
_TABLES = "create the tables of the models in the database of the test, such as by Base.metadata.create_all(engine)"
_SWALLOWED = "let errors out of the handler, so that the message comes again"


def _report(handler: Handler, problems: Sequence[Finding]) -> str:
    lines = [f"the effects of handler {handler.name!r} do not happen once", ""]
    for problem in problems[:SHOWN]:
        lines += [problem.title, *problem.lines]
        lines += [f"  to do: {problem.cure}"] if problem.cure else []
        lines.append("")
    if rest := problems[SHOWN:]:
        lines += ["also:", *(f"  {problem.title}" for problem in rest), ""]
    if any(line.startswith(("    - ", "    + ")) for problem in problems for line in problem.lines):
        lines.append("(- expected, + in this trial)")
    return "\n".join(lines).rstrip()
