"""The command line, run in the test's own process."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from outboxkit.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def at(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database of the commands, at which Ada works."""
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", database_url)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    return database_url


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `outboxkit` with these arguments and settings. Not for what runs until a signal: see tests/acceptance."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(os, "_exit", sys.exit)  # threads of other tests would end all of them, with code 0

    def command(*arguments: str, **settings: str) -> Ended:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["outboxkit", *arguments])
            for name, value in settings.items():
                patched.setenv(f"OUTBOXKIT_{name.upper()}", value)
            with pytest.raises(SystemExit) as ended:
                main()
        written = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else int(code is not None), written.out, written.err)

    return command
