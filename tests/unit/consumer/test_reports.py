"""What is said of a failure: to the log, to the standard logging, to the hook, and in the dead letter."""

import asyncio
import logging
import sqlite3
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import Outcome, inbox_handler
from outboxkit.consumer import Failure
from outboxkit.errors import ConfigurationError
from tests.unit.consumer.conftest import Bench
from tests.unit.shop import OrderConfirmed, message

CARD = "4111"


async def test_a_failure_reaches_the_log_the_standard_logging_and_the_hook(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    def compute(found: dict[str, Any]) -> Any:
        secret = "4111-1111"  # noqa: F841
        return found["missing"]

    @inbox_handler("Computes")
    async def computes(session: AsyncSession, event: OrderConfirmed) -> None:
        compute({})

    failures: list[Failure] = []

    def hook(failure: Failure) -> None:
        failures.append(failure)
        raise ZeroDivisionError

    consumer = bench.consumer(computes, max_attempts=2)
    with pytest.raises(ConfigurationError, match="plain function"):
        consumer.on_error = computes
    consumer.on_error = hook
    bench.put(message(type="OrderConfirmed"))
    running = asyncio.create_task(consumer.run(bench.stop))
    with capture_logs() as said, caplog.at_level(logging.WARNING, "outboxkit.consumer"):
        while not consumer.outcomes[Outcome.DEAD]:
            await asyncio.wait((running,), timeout=0.005)
        bench.stop.set()
        await running
    assert [(one.handler, one.attempt, one.final, type(one.error)) for one in failures] == [
        ("Computes", 1, False, KeyError),
        ("Computes", 2, True, KeyError),
    ]
    (row,) = bench.letters()
    told = [line for line in said if "reason" in line]
    for text in (row["traceback"], *(line["exception"] for line in told), failures[0].traceback):
        assert text.startswith("Traceback (most recent call last):\n")
        assert text.endswith("KeyError: 'missing'")
        assert 'return found["missing"]' in text
        assert "site-packages" not in text
        assert "4111" not in text
    assert [line["log_level"] for line in told] == ["warning", "error"]
    assert [line["event"] for line in said].count("the on_error hook failed") == 2
    warned, given_up = [record for record in caplog.records if record.exc_info]
    assert (warned.levelname, given_up.levelname) == ("WARNING", "ERROR")
    assert given_up.exc_info[1] is failures[1].error
    assert (given_up.message_id, given_up.handler) == ("m-1", "Computes")
    assert logging.Formatter().format(given_up).endswith(row["traceback"])


async def test_no_value_of_a_statement_and_no_forged_line_leaves_the_consumer(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    forged = "x\n2026-01-01 [info] forged\x1b[31m"

    @inbox_handler("Inserts")
    def inserts(session: Session, event: OrderConfirmed) -> None:
        try:
            error = sqlite3.IntegrityError(
                f"UNIQUE constraint failed: cards.number\nDETAIL:  Key (number)=({CARD}) exists"
            )
            raise IntegrityError("INSERT INTO cards VALUES (:number)", {"number": CARD}, error)
        except DBAPIError as error:
            raise ValueError(f"{forged} {error}") from error

    bench.put(message(type="OrderConfirmed", correlation_id=forged), message(id=forged, type=forged))
    with capture_logs() as said, caplog.at_level(logging.WARNING, "outboxkit.consumer"):
        await bench.run_until_settled(inserts, max_attempts=1)
    letters = bench.letters()
    texts = [value for line in said for value in line.values() if isinstance(value, str)]
    texts += [logging.Formatter().format(record) for record in caplog.records]
    texts += [str(row[name]) for row in letters for name in ("error", "traceback")]
    assert len(letters) == 2
    assert not [text for text in texts if "4111" in text or "\x1b" in text or "\n2026" in text]
    assert any("UNIQUE constraint failed: cards.number" in text for text in texts)
