"""What commands show on a terminal: the progress of a long work, lines elsewhere; and lists that can be read."""

import json
import os
import pty
import subprocess
import sys

import pytest

from outboxkit.cli import progress as module
from outboxkit.cli import wording
from outboxkit.cli.progress import progress
from outboxkit.runtime import logs
from tests.support.polling import eventually

ON_A_TERMINAL = """
import sys
from outboxkit.cli import progress
from outboxkit.runtime import logs
progress.SHORT_SECONDS = progress.REDRAW_SECONDS = 0.01
logs.configure_log(level="info")
log = logs.logger()
with progress.progress("pruned", lambda: 1234, 5000):
    sys.stdin.readline()
    log.info("a line of the log")
    sys.stdin.readline()
print("done")
"""


def test_a_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]):
    with progress("pruned", lambda: 1):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("replayed", lambda: 1234, 5000), "outboxkit: replayed 1 234 of 5 000, after "),
        (("pruned", lambda: 7), "outboxkit: pruned 7, after "),
        (("migrating",), "outboxkit: still migrating after "),
    ],
)
def test_elsewhere_there_is_a_line_now_and_then(
    arguments: tuple, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(module, "LINE_SECONDS", 0.01)
    written: list[str] = []
    with progress(*arguments):
        eventually(lambda: written.append(capsys.readouterr().err) or "".join(written).count("\n") >= 2)
    assert "".join(written).startswith(line)
    assert capsys.readouterr().out == ""


def test_a_command_with_a_log_logs_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(module, "LINE_SECONDS", 0.01)
    logs.configure_log(level="info")
    written: list[str] = []
    with progress("published", lambda: 12):
        eventually(lambda: written.append(capsys.readouterr().err) or "\n" in "".join(written))
    entry = json.loads("".join(written).splitlines()[0])
    assert (entry["event"], entry["count"]) == ("published so far", "12")


def test_a_terminal_shows_a_bar_below_the_log_and_a_pipe_gets_the_result_alone():
    ours, terminal = pty.openpty()
    seen = ""

    def shows(text: str) -> bool:
        nonlocal seen
        seen += os.read(ours, 65536).decode()
        return text in seen

    command, pipe = [sys.executable, "-c", ON_A_TERMINAL], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=terminal, text=True, bufsize=1) as process:
        os.close(terminal)
        assert process.stdin is not None
        assert process.stdout is not None
        eventually(lambda: shows("1 234 of 5 000"))
        process.stdin.write("\n")
        eventually(lambda: shows("a line of the log"))
        assert "\x1b[2K" in seen[: seen.index("a line of the log")], "the bar was taken away before the line"
        process.stdin.write("\n")
        assert process.stdout.read() == "done\n"
    assert process.returncode == 0
    os.close(ours)


@pytest.mark.parametrize(("width", "lines"), [("80", 4), ("120", 2)])
def test_a_list_can_be_read_on_every_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: str, lines: int
):
    """Where a table would break up its words, each row is written as lines."""
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    columns = {"no.": "number", "message id": "whole", "type": "folded", "error": "folded"}
    row = ["7", "01a21f18-c79e-7409-aef5-cb7bd529aeaa", "OrderConfirmed", "InsufficientFundsOfTheCustomer"]
    wording.print_table(columns, [row])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == lines
    assert all(text in printed for text in (*columns, *row))
