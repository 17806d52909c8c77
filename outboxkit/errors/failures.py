"""Exceptions and paths of code as text for people: one line, or a traceback. Bounded, without SQL and its values. Pure.

Nothing here raises, whatever the exception is, even if its `__str__` does.
"""

import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, get_origin

from outboxkit.errors.sqlstates import ATTRIBUTES, DATA_EXCEPTION

TEXT_LIMIT = 64_000
"""The maximum characters of an error's text that are read."""
LINE_LIMIT = 1_000
"""The maximum characters of an error in one line."""
TRACEBACK_LIMIT = 16_000
"""The maximum characters of a traceback; the middle of a longer one is left out."""
CALLS = 2_000
"""The maximum calls of a traceback that are read. An error that is raised again and again has those of each time."""
FRAMES, CHAINED, GROUPED, ERRORS, TEXT_LINES = 40, 8, 5, 40, 20
"""The limits of a traceback: its last frames, the errors of a chain, of a group and in total, the lines of a text."""

_OF_A_STATEMENT = re.compile(
    r"\[SQL: |\[parameters: |\(Background on this error |\n(?:DETAIL|CONTEXT|QUERY|LINE \d{1,9}): "
    r"|for query argument \$\d{1,5}: "
)
"""The beginnings of what SQLAlchemy, PostgreSQL and asyncpg add to an error: the statement, its parameters, a row's
values."""
_CLASS = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)
_CALL = (str(Path(__file__).parents[1] / "inbox" / "run_once.py"), "_apply")
"""The file and the name of the function that calls a handler: frames above it say nothing."""


def forget_locals(error: BaseException | None) -> None:
    """Free the local variables of the calls in an error's traceback, such as a large message; its lines stay.

    So it is with the errors that it came from, and with those of a group. Until then they live as long as the error, or
    a cycle that it is in. A call that has not ended keeps its variables, such as a coroutine that handed its error on.
    """
    waiting, visited = list[object]([error]), set[int]()
    while waiting and len(visited) < ERRORS:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in visited:
            continue
        visited.add(id(each))
        for call in _calls(each):
            if _has_ended(call.tb_frame):
                call.tb_frame.clear()
        waiting += [*_members(each)[:ERRORS], _attribute(each, "__context__"), _attribute(each, "__cause__")]


def _has_ended(frame: FrameType) -> bool:
    """Whether the call has ended: only then its frame owns what the call refers to, such as its code.

    `clear` itself would close a generator or a coroutine that waits, before Python 3.13.
    """
    return any(each is frame.f_code for each in gc.get_referents(frame))


def printable(text: str, limit: int = LINE_LIMIT) -> str:
    """A text in one line: invisible characters are escaped, and a text over the limit is cut off."""
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else _escaped(each) for each in shown)
    return shown if len(shown) <= limit and len(text) <= limit else f"{shown[: limit - 1]}…"


def text_of(value: object) -> str:
    """The value's text, if it has one, without the statement and the values that a database error repeats."""
    try:
        text = str(value)[:TEXT_LIMIT]  # cut first: it may be as long as a message
    except Exception as error:  # noqa: BLE001 - the `__str__` of an application's error may raise anything
        return f"(its text cannot be read: {type(error).__name__})"
    state = next((state for name in ATTRIBUTES if isinstance(state := _attribute(value, name), str)), None)
    if state is not None:
        text = text.strip().partition("\n")[0]
        text = text.partition(': "')[0] if state.startswith(DATA_EXCEPTION) else text
    of_a_statement = _OF_A_STATEMENT.search(text)
    return text[: of_a_statement.start() if of_a_statement else None].strip()


def first_line(error: BaseException | None) -> str:
    """An error in one line, without the SQL and its parameters, which must not reach a log."""
    cause = _original(error)
    text, name = text_of(cause), type(cause).__name__
    return printable(f"{name}: {text.splitlines()[0]}" if text else name)


def class_of(line: str) -> str:
    """The class of an error in one line, without its text, which may repeat what is in a message."""
    name, colon, _ = line.partition(":")
    return f"{name}{colon and ': …'}" if _CLASS.fullmatch(name) else "…"


def first_line_of(reason: object) -> str:
    """A reason of any type in one line; an error with its type."""
    if isinstance(reason, BaseException):
        return first_line(reason)
    return printable(text_of(reason))


def traceback_of(error: BaseException) -> str:
    """The traceback with source lines, causes and groups; no local variables. The last line is the error's own."""
    try:
        text = "\n".join(_lines(error, set()))
    except Exception as other:  # noqa: BLE001 - attributes of a handler's error may raise anything
        return f"{first_line(error)} (the traceback cannot be shown: {type(other).__name__})"
    head = 2_000
    if len(text) <= TRACEBACK_LIMIT:
        return text
    return f"{text[:head]}\n… (left out) …\n{text[head + 20 - TRACEBACK_LIMIT :]}"


def forget_values(error: BaseException) -> None:
    """Remove the parameters of statements from SQLAlchemy's text, before the error is handed on."""
    for each, _ in _chain(error, set()):
        if hasattr(type(each), "hide_parameters") or isinstance(_attribute(each, "hide_parameters"), bool):
            with suppress(Exception):
                each.hide_parameters = True  # type: ignore[attr-defined]


def _escaped(character: str) -> str:
    return "\\0" if character == "\0" else character.encode("unicode_escape").decode()


def _attribute(value: object, name: str) -> object:
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return None


def _original(error: BaseException | None) -> BaseException | None:
    """The driver's error behind one of SQLAlchemy."""
    original = _attribute(error, "orig")
    return original if isinstance(original, BaseException) else error


def _chain(error: BaseException, visited: set[int]) -> Iterator[tuple[BaseException, str]]:
    """The error and its causes, each with the text of its link to the previous one; without those already visited."""
    link, each = "", error
    for _ in range(CHAINED):
        if id(each) in visited or len(visited) == ERRORS:
            return
        visited.add(id(each))
        yield each, link
        cause, context = _attribute(each, "__cause__"), _attribute(each, "__context__")
        following = cause if cause is not None or _attribute(each, "__suppress_context__") is True else context
        if not isinstance(following, BaseException):
            return
        link = (
            "While it was handled:"
            if cause is None
            else "The above exception was the direct cause of the following one:"
        )
        each = following


def _lines(error: BaseException, visited: set[int], depth: int = 0) -> Iterator[str]:
    chain = list(_chain(error, visited))
    for number, (each, _) in enumerate(reversed(chain)):
        if number:
            yield from ("", chain[len(chain) - number][1], "")
        yield "Traceback (most recent call last):"
        calls = ((call.tb_frame, call.tb_lineno) for call in _from_handler(_calls(each)))
        frames = traceback.StackSummary.extract(calls, limit=-FRAMES)
        for text in frames.format():
            yield from (printable(line) for line in text.splitlines())
        yield first_line(each)
        more = [*text_of(_original(each)).splitlines()[1:], *_notes(each)]
        yield from (f"  | {printable(line)}" for line in more[:TEXT_LINES])
        if depth < GROUPED:
            for inner in _members(each)[:GROUPED]:
                yield from (f"    {line}" for line in _lines(inner, visited, depth + 1))


def _members(error: BaseException) -> tuple[Any, ...]:
    """The errors of a group."""
    members = _attribute(error, "exceptions") if issubclass(type(error), BaseExceptionGroup) else None
    return members if isinstance(members, tuple) else ()


def _notes(error: BaseException) -> list[str]:
    notes = _attribute(error, "__notes__")
    return (
        [line for note in notes[:TEXT_LINES] for line in text_of(note).splitlines()] if isinstance(notes, list) else []
    )


def _calls(error: BaseException) -> list[TracebackType]:
    """The calls of the traceback, the outermost first."""
    calls, call = list[TracebackType](), _attribute(error, "__traceback__")
    while isinstance(call, TracebackType) and len(calls) < CALLS:
        calls.append(call)
        call = call.tb_next
    return calls


def _from_handler(calls: list[TracebackType]) -> list[TracebackType]:
    """The part of a traceback that begins in the handler; all of it if no handler was called."""
    start, last = 0, len(calls) - 1
    for number, call in enumerate(calls):
        code = call.tb_frame.f_code
        if code.co_filename == _CALL[0] and code.co_name == _CALL[1]:
            start = number + 1
    while start < last and "sqlalchemy" in calls[start].tb_frame.f_code.co_filename:
        start += 1
    return calls[start:] or calls


def path_of(named: object) -> str:
    """The dotted path of a function, a class, or an object of a class without a name of its own."""
    if get_origin(named) is not None:  # `Annotated[Clock, "utc"]` has the name `Annotated`
        return printable(repr(named), 200)
    name = getattr(named, "__qualname__", None)
    if not isinstance(name, str):
        return printable(repr(named), 200)
    module = getattr(named, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"
