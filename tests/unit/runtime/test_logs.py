"""The log: what a stranger has named stays in its line, and no traceback shows what was being worked on."""

import asyncio
import gc
import json
import logging
import re
import sys
from typing import Any

import psycopg
import pytest
import structlog
from pamqp import encode
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, StatementError

from outboxkit.errors import failures
from outboxkit.runtime import logs, process

SECRET = "4111-SECRET"
COLOUR = re.compile(r"\x1b\[\d*m")


def refused() -> IntegrityError:
    orig = psycopg.errors.CheckViolation(f"new row violates\nDETAIL:  Failing row contains ({SECRET}).")
    return IntegrityError("INSERT INTO outbox VALUES (:p)", {"p": SECRET}, orig)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def chained() -> Exception:
    try:
        try:
            raise refused()
        except IntegrityError as error:
            raise ExceptionGroup("two\nforged", [refused(), Unspeakable(), ValueError("\x1b[31mred")]) from error
    except ExceptionGroup as error:
        return error


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_traceback_has_no_parameters_and_no_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    process.configure_log(level="info")
    structlog.get_logger("outboxkit").error("broken", exc_info=chained())
    written = COLOUR.sub("", capsys.readouterr().err)
    said = written if is_terminal else json.loads(written)["exception"]
    for expected in (
        "in chained",
        "CheckViolation: new row violates",
        "ExceptionGroup: two",
        "Unspeakable",
        "ValueError: \\x1b[31mred",
    ):
        assert expected in said
    assert SECRET not in written
    assert "INSERT" not in written
    assert "\x1b" not in written


def test_an_error_that_is_its_own_cause_or_a_long_chain_has_an_end():
    first = ValueError("first")
    first.__cause__ = first
    assert failures.traceback_of(first).count("ValueError: first") == 1
    for number in range(50):
        following = ValueError(str(number))
        following.__cause__, first = first, following
    assert failures.traceback_of(first).count("ValueError") == failures.CHAINED


async def test_an_engine_hides_the_parameters_of_its_statements():
    engine = process.engine("sqlite://", name="unit tests")
    with pytest.raises(StatementError) as raised:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT :a FROM nothing"), {"a": SECRET})
    assert SECRET not in str(raised.value)
    await engine.dispose()


@pytest.mark.parametrize(
    "name", ["x\n2026-01-01T00:00:00Z [info     ] forged", "\x1b[2J", "a\x9bb", "\u2028forged", "\u202eevil"]
)
def test_a_foreign_name_cannot_forge_a_line_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    process.configure_log(level="info")
    structlog.get_logger("outboxkit").bind(process="relay").warning(f"dead {name}", type=name, many=[name], **{name: 1})
    (line,) = COLOUR.sub("", capsys.readouterr().err).splitlines()
    assert line.isprintable()


def test_what_libraries_log_is_a_bounded_line_of_ours(capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    process.configure_log(level="info")
    monkeypatch.setattr(logging.root, "handlers", [])
    library = logging.getLogger("unit.library")
    library.warning("x" * 10_000 + f"\n{SECRET}")
    library.warning("wrong %d", "format")
    try:
        raise refused()
    except IntegrityError:
        library.exception("failed")
    encode.field_table({"k\n" * 100: 1})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines] == ["unit.library"] * 3
    assert len(lines[0]["event"]) == logs.LINE_CHARACTERS
    assert "CheckViolation" in lines[2]["exception"]
    assert SECRET not in json.dumps(lines)


def test_an_error_that_nobody_waited_for_is_a_line_of_ours(capsys: pytest.CaptureFixture[str]):
    process.configure_log(level="info")

    async def fail() -> None:
        raise refused()

    async def service(stop: asyncio.Event) -> int:
        task = asyncio.ensure_future(fail())
        await asyncio.wait([task])
        del task
        gc.collect()
        return 0

    assert process.run(service, shutdown_timeout=process.LEAVING) == 0
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert line["event"] == "an error that no task awaited"
    assert "CheckViolation" in line["exception"]
    assert SECRET not in json.dumps(line)
