"""What an exception says to people, whatever the exception is made of."""

from typing import Any

import pytest

from outboxkit import failures


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
        raise SystemExit(3)

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_exception_that_cannot_be_read_is_told_all_the_same():
    error = raised(Touchy("t", [ValueError()]))
    told = "Touchy: (its text cannot be read: KeyboardInterrupt)"
    assert failures.first_line(error) == told
    assert failures.traceback_of(error) == f"{told} (the traceback cannot be shown: RuntimeError)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\tb", "a\\tb"), ("\0", "\\0"), ("\ud800", "\\ud800"), ("\u200b", "\\u200b"), ("grüße 漢", "grüße 漢")],
)
def test_what_cannot_be_seen_is_escaped(text: str, shown: str):
    assert failures.printable(text) == shown


def test_a_long_line_is_cut():
    assert failures.printable("x" * 2000, 10) == "x" * 9 + "…"
    assert failures.printable("\n" * 10, 10) == "\\n" * 4 + "\\…"
