"""`assert_effects_once`: a handler is delivered its message in all the ways that can go wrong, on a real database.

Each trial begins with the same rows, and ends in a comparison: what it has changed must be what one delivery changes.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from sqlalchemy.exc import InvalidRequestError, PendingRollbackError

from outboxkit.errors import TransactionRequired, sqlstates
from outboxkit.inbox import Handler, Outcome, handler_of
from outboxkit.testing.bench import PATIENCE, Bench, open_bench
from outboxkit.testing.differences import Changes, difference, varying
from outboxkit.testing.messages import message_for
from outboxkit.testing.outside import AFTER, FILE, STATEMENT
from outboxkit.testing.races import Meeting, meetings
from outboxkit.testing.reading import SEQUENCES
from outboxkit.testing.trials import Ending

STATEMENTS = 12
"""The number of statements of a handler that are made to fail, or between which another message is handled."""
SHOWN, ROWS = 4, 6


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
    outside: Collection[str] = (),
    watch: Callable[[], object] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Assert that the handler's effects happen once, whatever happens around the delivery of its message.

    Delivers the event in real transactions, each time from the same rows. It comes twice, and twice at once; with a
    rollback, or a killed connection, before the commit; with a crash after it. Then with each of its statements
    failing, with each of its awaits cancelled, among other messages, and between two statements of another message.

    All tables are compared with those after one delivery, and the outbox. An effect outside of the handler's session is
    a finding, and really happens. Three kinds are right: inside `effects.once`, under a key that is the same at each
    attempt, and named in `outside`.

    The rows of the database are put back in the end. It must be one for tests, with at most 10 000 rows. Another
    process that tests a handler on it waits meanwhile.

    Args:
        handler: a function with `@inbox_handler`, or its `Handler`.
        event: the event, or a `Message`, which gets a new id in each trial.
        engine: an `Engine` or `AsyncEngine`, or a session or sessionmaker with one. What the handler needs is
            committed there.
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
    spec = handler if isinstance(handler, Handler) else handler_of(handler)
    for each in (event, *others):
        message_for(spec, each)
    with open_bench(
        spec, event, engine=engine, ignore=ignore, outside=outside, watch=watch, patience=patience
    ) as bench:
        problems = _problems(bench, others)
        if problems and bench.database.others_wait():
            problems.append(Finding("another process of tests waits for this database", cure=_ALONE))
    if problems:
        raise AssertionError(_report(spec, problems))
    if not bench.has_effects:
        warnings.warn(f"handler {spec.name!r} has changed nothing. {_NOTHING}", stacklevel=2)


def _problems(bench: Bench, others: Collection[object]) -> list[Finding]:
    """The problems of the first group of trials that shows any."""
    __tracebackhide__ = True
    for trials in (
        _once,
        _repeated,
        _second,
        _lost,
        _at_once,
        _failing,
        _cancelled,
        partial(_among_others, others=others),
    ):
        bench.trials.title = getattr(trials, "__name__", "_among_others").strip("_").replace("_", " ")
        problems = list(trials(bench))
        if problems := [*_outside(bench), *problems]:
            return problems
    return []


def _outside(bench: Bench) -> Iterator[Finding]:
    """The findings about effects outside of the session so far."""
    effects = list(bench.recorder.effects)
    for kind in dict.fromkeys(effect.kind for effect in effects):
        of_kind = [effect for effect in effects if effect.kind == kind]
        names = ", ".join(repr(effect.target) for effect in of_kind[:2])
        cure = _OUTBOX if kind == AFTER else f"{_CURES.get(kind, _OUTSIDE_CURE)}; if it is meant: outside=[{names}]"
        yield Finding(kind, [str(effect) for effect in of_kind[:ROWS]], cure)


def _differs(bench: Bench, title: str, cure: str = "", expected: Sequence[Changes] = ()) -> Iterator[Finding]:
    """A problem, if the changes are not the expected ones: by default those of one delivery."""
    actual = bench.changes()
    lines = [difference(each, actual, bench.varied) for each in expected or (bench.expected,)]
    if all(lines):
        yield Finding(title, min(lines, key=len), cure)


def _once(bench: Bench) -> Iterator[Finding]:
    """Two single deliveries from the same rows: what differs between them varies, and is not compared later on."""
    __tracebackhide__ = True
    bench.reset()
    first = bench.deliver(bench.message())
    if first.error is not None:
        hint = f"\n  to do: {_TABLES}" if sqlstates.is_missing_table(first.error) else ""
        text = (
            f"handler {bench.handler.name!r} failed at its first delivery, so that nothing can be compared: "
            f"{type(first.error).__name__}: {first.error}{hint}"
        )
        if bench.recorder.effects:  # they are findings all the same
            yield Finding("it failed at its first delivery", [f"    {_shown(first.error)}"])
            return
        raise AssertionError(text) from first.error
    bench.has_effects = bench.has_changes()
    bench.look_for_sequences()
    bench.expected, bench.statements, bench.reads = bench.changes(), first.statements, first.reads
    for each in first.left:
        yield Finding(f"it leaves {each} behind, which goes on after its transaction", cure=_AWAIT)
    for each in dict.fromkeys(bench.recorder.forgotten):
        yield Finding(
            f"it calls {each} and does not await it, so that nothing of it is done", cure=f"await {each}(...)"
        )
    if first.left or bench.recorder.effects:
        return
    bench.reset()
    if not bench.has_sequences:
        bench.database.advance(bench.start)
    error = bench.deliver(bench.message()).error
    second = bench.changes()
    varied = varying(bench.expected, second)
    if error is not None or varied is None:
        lines = [f"    the second one fails: {_shown(error)}"] if error else difference(bench.expected, second, {})
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
    if isinstance(error, TransactionRequired) or type(error) in (InvalidRequestError, PendingRollbackError):
        yield Finding("a second message of the same event fails, each time", [f"    {_shown(error)}"], _SAVEPOINT)


def _lost(bench: Bench) -> Iterator[Finding]:
    """The transaction is lost before its commit, and the message comes again."""
    for title, ending in (("a rollback", Ending.ROLLBACK), ("a connection lost before the commit", Ending.KILLED)):
        bench.reset()
        message = bench.message()
        bench.deliver(message, ending)
        tables = {name: each for name, each in bench.changes().items() if name != SEQUENCES}
        if left := difference({}, tables, bench.varied):
            yield Finding(f"what stays after {title}", left, _SESSION)
        before = bench.remembered(), bench.recorder.state()
        again = bench.settle(message)
        if again.error is not None:
            yield Finding(f"{title}, then again: it fails with {_shown(again.error)}")
        if ending is Ending.ROLLBACK:
            yield from _again(bench, *before)
        for each in _differs(bench, f"{title}, then again", _AGAIN):
            is_less = not any(line.startswith("    +") for line in each.lines)
            yield replace(each, cure=_MEMORY) if is_less else each


def _again(bench: Bench, remembered: dict[str, str], files: dict[str, str]) -> Iterator[Finding]:
    """Variables and files that a second attempt has changed again."""
    now = bench.remembered()
    bench.recorder.compare(files)
    if changed := [name for name in now if now[name] != remembered.get(name)]:
        lines = [f"    {name}{'' if 'environ' in name else f' = {now[name][:100]}'}" for name in changed[:ROWS]]
        yield Finding("a retry counts or remembers again in variables", lines, _VARIABLES)


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
            if bench.wait(each).error is not None:
                bench.settle(message)
        yield from _differs(bench, title, _AGAIN)


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


def _cancelled(bench: Bench) -> Iterator[Finding]:
    """An await is cancelled, as by a timeout or a stop: a handler that goes on must do all the same."""
    for number in range(min(bench.statements, STATEMENTS) + 1) if bench.handler.is_async else ():
        bench.reset()
        if bench.deliver(bench.message(), cancelled=number).error is not None:
            continue
        if findings := list(_differs(bench, "it swallows a cancellation, and counts as done", _SWALLOWED)):
            yield from findings
            return


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
_AGAIN = "a second delivery must find what the first one has done, in rows of the handler's own session"
_OUTSIDE_CURE = (
    "a rollback does not undo this, and a retry repeats it. Use effects.once, give it a key that is the same at each "
    "attempt (message.id), or add a message to the outbox"
)
_CURES = {STATEMENT: _SESSION, FILE: "write the same file with the same content each time, or one that it removes"}
_VARIABLES = 'let it remember in rows, which go with the rollback; if it is meant, ignore=["..."] has the name'
_SAVEPOINT = "put a statement that may fail into session.begin_nested()"
_ALONE = "rows that it commits meanwhile are seen here: give each process a database of its own (outboxkit_database)"
_NOTHING = "If it ought to, commit the rows that it needs before, and look whether it writes to its own session"
_MEMORY = "it takes its work for done: let it remember in rows, which go with the rollback, and not in variables"
_LOCK = "let the statement compute (SET n = n + 1), or lock the row that is read (with_for_update, version_id_col)"
_UPSERT = "between the look and the insert another transaction inserts: use INSERT ... ON CONFLICT"
_TABLES = "create the tables of the models in the database of the test, such as by Base.metadata.create_all(engine)"
_SWALLOWED = "let errors out of the handler, so that the message comes again"


def _report(handler: Handler, problems: Sequence[Finding]) -> str:
    titles: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for problem in problems:  # trials that show the same are one
        titles.setdefault((tuple(problem.lines), problem.cure), []).append(problem.title)
    lines = [f"the effects of handler {handler.name!r} do not happen once", ""]
    for (shown, cure), names in list(titles.items())[:SHOWN]:
        lines += ["; ".join(names), *shown, *([f"  to do: {cure}"] if cure else []), ""]
    if rest := list(titles.values())[SHOWN:]:
        lines += ["also:", *(f"  {'; '.join(names)}" for names in rest), ""]
    if any(line.startswith(("    - ", "    + ")) for problem in problems for line in problem.lines):
        lines.append("(- expected, + in this trial)")
    return "\n".join(lines).rstrip()
