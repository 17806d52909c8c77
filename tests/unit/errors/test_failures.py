"""What an exception says to people and what it keeps, whatever the exception is made of."""

import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from outboxkit.errors import failures


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_the_middle_of_a_long_traceback_is_left_out():
    lines = [f"{number} {'x' * 900}" for number in range(30)]
    text = failures.traceback_of(raised(ValueError("\n".join(lines))))
    assert len(text) < failures.TRACEBACK_LIMIT + 100
    assert text.startswith("Traceback (most recent call last):")
    assert "\n… (left out) …\n" in text
    assert text.endswith(f"  | {lines[failures.TEXT_LINES]}")


class Touchy(ExceptionGroup[Exception]):
    """Nothing of it can be read."""

    @property
    def exceptions(self) -> Any:
        raise RuntimeError("no")

    @property
    def sqlstate(self) -> str:
        raise KeyError

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_exception_that_cannot_be_read_is_told_all_the_same():
    error = raised(Touchy("t", [ValueError()]))
    told = "Touchy: (its text cannot be read: ZeroDivisionError)"
    assert failures.first_line(error) == told
    assert failures.traceback_of(error).endswith(told)


class Broken(Exception):
    """Anything."""


def test_a_traceback_that_cannot_be_made_is_told_as_that(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(failures.traceback.StackSummary, "extract", fail)
    assert failures.traceback_of(raised(Broken("x"))) == "Broken: x (the traceback cannot be shown: MemoryError)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\tb", "a\\tb"), ("\0", "\\0"), ("\ud800", "\\ud800"), ("\u200b", "\\u200b"), ("grüße 漢", "grüße 漢")],
)
def test_what_cannot_be_seen_is_escaped(text: str, shown: str):
    assert failures.printable(text) == shown


def test_a_long_line_is_cut():
    assert failures.printable("x" * 2000, 10) == "x" * 9 + "…"
    assert failures.printable("\n" * 10, 10) == "\\n" * 4 + "\\…"


@pytest.mark.parametrize("blank", [" ", "\n", "\t \n", "LINE 1", "\nLINE 1"])
def test_a_text_as_long_as_a_message_takes_no_longer_than_a_short_one(blank: str):
    """Counted in characters that are looked at, which is what bounds the time."""
    error = raised(ValueError(f"start{blank * 2_000_000}end"))
    error.__notes__ = [f"{blank * 2_000_000}"] * 5
    assert failures.first_line(error).startswith("ValueError: start")
    assert len(failures.traceback_of(error)) < failures.TRACEBACK_LIMIT + 100


def test_what_a_statement_was_and_had_is_left_out():
    text = "refused  \n\t [SQL: INSERT] \n[parameters: (4111)]\n(Background on this error at: x)"
    assert failures.text_of(ValueError(text)) == "refused"
    assert failures.text_of(ValueError("null value\nDETAIL:  Failing row contains (4111).")) == "null value"
    of_asyncpg = "<class 'asyncpg.exceptions.DataError'>: invalid input for query argument $1: '4111' (not an integer)"
    assert failures.text_of(ValueError(of_asyncpg)) == "<class 'asyncpg.exceptions.DataError'>: invalid input"


class Hidden(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Falsy(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no")


def test_the_value_that_no_column_can_hold_is_left_out():
    class Refused(Exception):
        """As a driver's error has its state."""

        sqlstate = "22P02"

    refused = Refused('invalid input syntax for type integer: "4111 1111"\nCONTEXT: portal parameter $1')
    assert failures.first_line(refused) == "Refused: invalid input syntax for type integer"


def test_an_exception_whose_attributes_cannot_be_read_is_told_all_the_same():
    assert failures.traceback_of(raised(Hidden("x"))).endswith("Hidden: x")
    error = ValueError("boom")
    error.__cause__ = Falsy("cause")
    text = failures.traceback_of(raised(error))
    assert "Falsy: cause" in text
    assert text.endswith("ValueError: boom")


class Content:
    """As a large message."""


KEPT = weakref.WeakSet[Content]()


def failed(error: Exception) -> Exception:
    content = Content()
    KEPT.add(content)
    with suppress(Exception):
        raise error
    return error


def chained() -> Exception:
    error = failed(ValueError("outer"))
    error.__cause__, error.__context__ = Falsy("cause"), failed(KeyError("context"))
    error.__context__.__context__ = error
    return error


@pytest.mark.parametrize(
    "make",
    [
        chained,
        lambda: ExceptionGroup("g", [ExceptionGroup("h", [chained()]), ValueError()]),
        lambda: failed(Touchy("t", [ValueError()])),
    ],
)
def test_no_local_variable_of_an_error_lives_on(make: Callable[[], Exception]):
    KEPT.clear()
    error = make()
    before = len(KEPT)
    failures.forget_locals(error)
    assert before > len(KEPT) == 0


def test_an_exception_whose_attributes_cannot_be_read_keeps_its_variables():
    failures.forget_locals(raised(Hidden("x")))


def test_a_generator_that_goes_on_after_an_error_keeps_its_variables():
    def take() -> Generator[str, None, None]:
        seen = 0
        while True:
            try:
                yield f"{seen}"
            except ValueError:
                seen += 1

    taking, error = take(), ValueError("no")
    assert next(taking) == "0"
    taking.throw(error)
    failures.forget_locals(error)
    assert next(taking) == "1"


@pytest.mark.parametrize("read", [failures.forget_locals, failures.traceback_of])
def test_an_error_that_was_raised_very_often_takes_no_longer_than_one_that_was_raised_often(read: Any):
    """Counted in calls. As of a circuit breaker, which raises one error again and again."""
    error, counts = ValueError("open"), []
    for often in (failures.CALLS, 2 * failures.CALLS):
        for _ in range(often):
            raised(error)
        calls: list[str] = []
        sys.setprofile(lambda _, what, __, calls=calls: calls.append(what))
        try:
            read(error)
        finally:
            sys.setprofile(None)
        counts.append(len(calls))
    assert counts[1] < 1.01 * counts[0]
