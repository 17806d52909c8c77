"""`outboxkit relay` and `outboxkit consume`: what they refuse to start with, and how they sum up."""

from pathlib import Path

import pytest

from outboxkit.cli.workers import _summary
from outboxkit.relay import Drained
from tests.unit.cli.conftest import Run

HANDLERS = """
from dataclasses import dataclass
from outboxkit import event, inbox_handler

@event("OrderConfirmed")
@dataclass
class OrderConfirmed:
    order_id: int

@inbox_handler("Handle")
def handle(session, event: OrderConfirmed): ...
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def module(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / f"{name}.py").write_text(text)
    return name


def refused(run: Run, *arguments: str) -> str:
    ended = run("consume", *arguments)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    return line.removeprefix("outboxkit: ")


def test_a_consumer_needs_a_queue(run: Run):
    assert refused(run, "unit_handlers") == "which queue? Give --queue NAME, or set OUTBOXKIT_QUEUE"


@pytest.mark.parametrize("name", ["unit_missing", "unit_missing.handlers", "json.missing"])
def test_a_module_that_is_not_there_is_named(run: Run, name: str):
    assert "no module named 'unit_missing" in refused(run, name, "--queue", "q") or name == "json.missing"
    assert "MODULE is a dotted name" in refused(run, name, "--queue", "q")


@pytest.mark.parametrize(
    ("number", "text", "reason"),
    [
        (1, "import unit_gone_dependency", "unit_gone_dependency"),
        (2, "1 / 0", "ZeroDivisionError"),
        (3, "def broken(:", "SyntaxError"),
        (4, "x = 1", "no handler in unit_broken_4"),
        (
            5,
            HANDLERS + "\n@inbox_handler('Handle')\ndef again(session, event: OrderConfirmed): ...",
            "two handlers are",
        ),
        (6, HANDLERS + "\n@inbox_handler('Other')\ndef other(session, event: int): ...", "annotate it"),
    ],
)
def test_a_module_that_cannot_be_used_says_why(run: Run, tmp_path: Path, number: int, text: str, reason: str):
    assert reason in refused(run, module(tmp_path, f"unit_broken_{number}", text), "--queue", "q")


def test_a_broker_inside_one_process_is_refused(run: Run, tmp_path: Path, database_url: str):
    given = ("--broker-url", "memory://", "--database-url", database_url)
    ended = run("relay", "--drain", *given)
    assert ended.code == 2
    assert "`outboxkit demo` shows memory:// at work" in ended.err
    assert "memory://" in refused(run, module(tmp_path, "unit_good", HANDLERS), "--queue", "q", *given)


def test_a_drain_is_summed_up():
    assert _summary(Drained(published=5)) == "published 5"
    done = Drained(published=5, later=2, held=3, failed={"A": (4, "unroutable: x"), "B": (1, "rejected: y")})
    assert _summary(done).splitlines() == [
        "published 5",
        "2 wait for a later time",
        "3 due, but not published: another relay holds them, or the drain was stopped",
        "4 A could not be published: unroutable: x",
        "1 B could not be published: rejected: y",
    ]
