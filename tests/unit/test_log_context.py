"""Lines that a handler logs carry its message, and an application's own configuration stays as it is."""

import asyncio
import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outboxkit import inbox, inbox_handler
from outboxkit.runtime import logs
from tests.unit.shop import OrderConfirmed, message

FIELDS = {"message_id": "m-1", "type": "OrderConfirmed", "correlation_id": "story"}
ORDER = message(id="m-1", correlation_id="story")


Standard = Callable[[], logging.Logger]


@pytest.fixture
def standard(monkeypatch: pytest.MonkeyPatch) -> Standard:
    """Make the root logger as it is at a process's start. To be called in the test: pytest adds handlers before it."""

    def renewed() -> logging.Logger:
        monkeypatch.setattr(logging.root, "handlers", [])
        logging.root.setLevel(logging.WARNING)
        return logging.getLogger("unit.shop")

    return renewed


def handlers_that(log: Callable[[str], object]) -> list[Any]:
    """A handler of each kind, which logs its name."""

    @inbox_handler("Plain")
    def plain(session: Session, event: OrderConfirmed) -> None:
        log("Plain")

    @inbox_handler("Async")
    async def awaiting(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.create_task(session.run_sync(lambda _: log("Async")))

    @inbox_handler("Threaded")
    async def threaded(session: AsyncSession, event: OrderConfirmed) -> None:
        await asyncio.to_thread(log, "Threaded")

    return [plain, awaiting, threaded]


async def lines(engine: AsyncEngine, log: Callable[[str], object], read: Callable[[], str]) -> list[dict[str, Any]]:
    """What is logged in handlers, and then outside of one."""
    for handler in handlers_that(log):
        async with AsyncSession(engine) as session, session.begin() as transaction:
            await session.run_sync(inbox.run_once, ORDER, handler)
            await transaction.rollback()
    log("outside")
    return [json.loads(line) for line in read().splitlines()]


def check(found: list[dict[str, Any]]) -> None:
    *inside, outside = found
    assert [entry["event"] for entry in found] == ["Plain", "Async", "Threaded", "outside"]
    for entry in inside:
        assert {name: entry.get(name) for name in (*FIELDS, "handler")} == FIELDS | {"handler": entry["event"]}
    assert not {name for name in (*FIELDS, "handler") if outside.get(name) is not None}


async def test_structlog_with_its_own_processor_has_them(async_engine: AsyncEngine):
    written = io.StringIO()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(written),
    )
    check(await lines(async_engine, lambda text: structlog.get_logger().info(text), written.getvalue))


@pytest.mark.parametrize("level", ["info", "warning"])
async def test_our_own_configuration_has_them_for_both_kinds_of_loggers(
    async_engine: AsyncEngine, capsys: pytest.CaptureFixture[str], standard: Standard, level: str
):
    shop = standard()
    logs.configure_log(level=level)
    logs.show_records()
    number = logging.getLevelNamesMapping()[level.upper()]

    def by_the_standard_library(text: str) -> None:
        shop.log(number - 10, "below the level")
        shop.log(number, text)

    def by_structlog(text: str) -> None:
        structlog.get_logger().log(number, text)

    for log in (by_the_standard_library, by_structlog):
        check(await lines(async_engine, log, lambda: capsys.readouterr().err))


async def test_a_filter_adds_them_to_records_of_the_standard_library(async_engine: AsyncEngine):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    fields = ", ".join(f'"{name}": "%({name})s"' for name in (*FIELDS, "handler"))
    handler.setFormatter(logging.Formatter('{"event": "%(message)s", ' + fields + "}"))
    handler.addFilter(logs.MessageFilter())
    shop = logging.getLogger("unit.filtered")
    shop.addHandler(handler)
    try:
        check(await lines(async_engine, shop.warning, lambda: written.getvalue().replace('"None"', "null")))
        shop.warning("own", extra={"message_id": "mine"})
        assert '"own", "message_id": "mine"' in written.getvalue()
    finally:
        shop.removeHandler(handler)


def test_structlog_stays_as_the_application_has_configured_it(capsys: pytest.CaptureFixture[str]):
    written = io.StringIO()
    processors = [structlog.processors.KeyValueRenderer()]
    structlog.configure(processors=processors, logger_factory=structlog.WriteLoggerFactory(written))
    before = logging.lastResort
    logs.configure_log(level="info")
    assert structlog.get_config()["processors"] is processors
    assert logging.lastResort is before
    logs.logger().warning("ours", database="db")
    assert written.getvalue() == "database='db' event='ours'\n"
    assert capsys.readouterr().err == ""


def test_our_own_configuration_may_be_renewed(capsys: pytest.CaptureFixture[str]):
    for level in ("error", "info"):
        logs.configure_log(level=level)
        logs.logger().info("a line")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("configure", ["handlers", "level", "nothing"])
def test_the_root_logger_stays_as_the_application_has_configured_it(standard: Standard, configure: str):
    standard()
    logs.configure_log(level="info")
    if configure == "handlers":
        logging.root.addHandler(logging.NullHandler())
    if configure == "level":
        logging.root.setLevel(logging.ERROR)
    before = logging.root.level
    logs.show_records()
    assert logging.root.level == (logging.INFO if configure == "nothing" else before)


def test_records_below_info_are_never_shown(standard: Standard):
    standard()
    logs.configure_log(level="debug")
    logs.show_records()
    assert logging.root.level == logging.INFO


def test_a_librarys_level_stays_if_it_is_set():
    logging.getLogger("httpx").setLevel(logging.INFO)
    logs.configure_log(level="info")
    assert logging.getLogger("httpx").level == logging.INFO
    assert logging.getLogger("pamqp").level == logging.CRITICAL
