"""The command line, run in the test's own process."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import pytest

from outboxkit.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


def ended_at_once(code: int) -> NoReturn:
    """In a test this would end the tests, with the exit code of success."""
    names = [thread.name for thread in threading.enumerate()]
    raise AssertionError(f"the process would end at once with code {code}; its threads: {names}")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `outboxkit` with these arguments. Not for what runs until a signal: see tests/acceptance."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(os, "_exit", ended_at_once)

    def command(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["outboxkit", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else int(code is not None), written.out, written.err)

    return command
