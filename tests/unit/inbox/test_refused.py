"""A handler's annotations and its name: a wrong one is refused."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session

from outboxkit import inbox, inbox_handler
from outboxkit.errors import ConfigurationError, DecodeError
from tests.unit.shop import OrderConfirmed, message


async def plain_and_session(session: Session, event: OrderConfirmed) -> None: ...


async def scoped(session: "scoped_session[Session]", event: OrderConfirmed) -> None: ...


def async_session(session: AsyncSession, event: OrderConfirmed) -> None: ...


def async_scoped(session: async_scoped_session[AsyncSession] | None, event: OrderConfirmed) -> None: ...


@pytest.mark.parametrize("function", [plain_and_session, scoped, async_session, async_scoped])
def test_a_session_of_the_other_colour_is_refused(function: Any):
    with pytest.raises(ConfigurationError, match="annotate it as"):
        inbox.handler_of(inbox_handler("Wrong")(function))


def test_a_session_of_either_colour_is_taken():
    @inbox_handler("Either")
    def either(session: Session | AsyncSession, event: OrderConfirmed) -> None: ...

    assert inbox.handler_of(either).name == "Either"


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 256, "é" * 128, 7])
def test_a_name_that_no_table_can_hold_is_refused(name: Any):
    with pytest.raises(ConfigurationError, match="1 to 255 bytes"):
        inbox_handler(name)


async def test_an_encoding_that_is_not_known_is_named(async_engine: AsyncEngine):
    @inbox_handler("Reads")
    def reads(session: Session, event: OrderConfirmed) -> None: ...

    async with async_sessionmaker(async_engine)() as session, session.begin():
        with pytest.raises(DecodeError, match="the payload is br-encoded"):
            await session.run_sync(inbox.run_once, message(content_encoding="br"), reads)
        for encoding in ("UTF-8", "identity", ""):
            found = message(id=f"m-{encoding}", content_encoding=encoding)
            assert await session.run_sync(inbox.run_once, found, reads) == "processed"
